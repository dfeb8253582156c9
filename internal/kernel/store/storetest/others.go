package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/kernel/store"
)

func testClaims(t *testing.T, b Backend) {
	claim := func(f *fixture, owner string) error {
		return f.Update(ctx, func(tx store.Tx) error { return tx.Claim("address", "10.0.0.1", owner) })
	}
	cases{
		"AKeyHasOneOwner": func(t *testing.T, f *fixture) {
			if err := errors.Join(claim(f, "a"), claim(f, "a")); err != nil {
				t.Fatalf("claim twice for one owner: %v", err)
			}
			if err := claim(f, "b"); !errors.Is(err, store.ErrClaimed) {
				t.Errorf("claim for another: %v, want ErrClaimed", err)
			}
			f.reopen()
			f.view(func(r store.Reader) error {
				owner, err := r.Claimed("address", "10.0.0.1")
				if owner != "a" {
					t.Errorf("owner %q, want a", owner)
				}
				return err
			})
		},
		"AReleasedKeyIsFree": func(t *testing.T, f *fixture) {
			release := func(tx store.Tx) error { return tx.Release("address", "10.0.0.1") }
			f.update(release)
			if err := claim(f, "a"); err != nil {
				t.Fatal(err)
			}
			f.update(release)
			if err := claim(f, "b"); err != nil {
				t.Errorf("claim of a released key: %v", err)
			}
		},
	}.run(t, b)
}

func testBlobs(t *testing.T, b Backend) {
	cases{
		"ComeBackAsTheyWere": func(t *testing.T, f *fixture) {
			big := bytes.Repeat([]byte{0, 1, 2, 0xff}, 1<<18)
			f.update(func(tx store.Tx) error {
				return errors.Join(tx.PutBlob("s/1", big), tx.PutBlob("s/2", []byte{}), tx.PutBlob("s/3", nil), tx.PutBlob("t/1", []byte("old")))
			})
			f.update(func(tx store.Tx) error { return tx.PutBlob("t/1", []byte("new!")) })
			f.reopen()
			f.view(func(r store.Reader) error {
				for name, want := range map[string][]byte{"s/1": big, "s/2": {}, "s/3": {}, "t/1": []byte("new!")} {
					got, err := r.Blob(name)
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("blob %s: %d bytes, %v; want %d", name, len(got), err, len(want))
					}
				}
				infos, err := r.Blobs("s/")
				if len(infos) != 3 || infos[0].Name != "s/1" || infos[0].Size != int64(len(big)) || infos[0].CreatedAt.IsZero() {
					t.Errorf("blobs below s/: %+v", infos)
				}
				return err
			})
			f.update(func(tx store.Tx) error { return errors.Join(tx.DeleteBlob("s/1"), tx.DeleteBlob("never")) })
			f.view(func(r store.Reader) error {
				if _, err := r.Blob("s/1"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("a deleted blob: %v, want ErrNotFound", err)
				}
				return nil
			})
		},
	}.run(t, b)
}

func testTables(t *testing.T, b Backend) {
	cases{
		"RowsComeInOrder": func(t *testing.T, f *fixture) {
			var ids []int64
			f.update(func(tx store.Tx) error {
				ids = nil
				for i := range 10 {
					id, err := tx.Append("audit", []string{"even", "odd"}[i%2], fmt.Append(nil, i))
					if err != nil {
						return err
					}
					ids = append(ids, id)
				}
				return second(tx.Append("other", "even", []byte("x")))
			})
			f.reopen()
			rows := func(table string, s store.Scan) (data []string) {
				f.view(func(r store.Reader) error {
					entries, err := r.Scan(table, s)
					for _, e := range entries {
						data = append(data, string(e.Data))
					}
					return err
				})
				return data
			}
			for _, c := range []struct {
				scan store.Scan
				want string
			}{
				{store.Scan{}, "0123456789"},
				{store.Scan{Limit: 3}, "012"},
				{store.Scan{Key: "odd"}, "13579"},
				{store.Scan{Key: "none"}, ""},
				{store.Scan{After: ids[7]}, "89"},
				{store.Scan{After: ids[2], Key: "even", Limit: 2}, "46"},
				{store.Scan{NewestFirst: true, Limit: 2}, "98"},
				{store.Scan{NewestFirst: true, Before: ids[4]}, "3210"},
				{store.Scan{NewestFirst: true, Before: ids[4], Key: "even"}, "20"},
			} {
				got := ""
				for _, data := range rows("audit", c.scan) {
					got += data
				}
				if got != c.want {
					t.Errorf("scan %+v: %q, want %q", c.scan, got, c.want)
				}
			}
			f.update(func(tx store.Tx) error {
				return errors.Join(tx.Trim("audit", "even", ids[5]), tx.Trim("audit", "", ids[2]))
			})
			if diff := cmp.Diff([]string{"3", "5", "6", "7", "8", "9"}, rows("audit", store.Scan{})); diff != "" {
				t.Errorf("after trimming (-want +got):\n%s", diff)
			}
			if got := rows("other", store.Scan{}); len(got) != 1 {
				t.Errorf("trimming reached another table: %v", got)
			}
		},
		"IdsAreNotUsedAgain": func(t *testing.T, f *fixture) {
			add := func() (id int64) {
				f.update(func(tx store.Tx) (err error) {
					id, err = tx.Append("audit", "k", nil)
					return err
				})
				return id
			}
			first := add()
			f.update(func(tx store.Tx) error { return tx.Trim("audit", "", first+1) })
			f.reopen()
			if again := add(); again <= first {
				t.Errorf("id %d after %d", again, first)
			}
		},
	}.run(t, b)
}
