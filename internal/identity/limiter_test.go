package identity

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"pgregory.net/rapid"

	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

func TestTheLimitersMemoryIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLimiter(Limits{}, func() time.Time { return now })
	for i := range 3 * maxBuckets {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		l.take(fmt.Sprintf("user-%d", i), addr)
		if len(l.users) > maxBuckets || len(l.addrs) > maxBuckets {
			t.Fatalf("%d users, %d addresses", len(l.users), len(l.addrs))
		}
	}
}

// TestAnAllowanceIsAnAllowance: in no stretch of time are there more attempts than the allowance and what came back
// to it meanwhile; and whoever waits as told is let through.
func TestAnAllowanceIsAnAllowance(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		l := newLimiter(Limits{PerUser: 3, PerUserEvery: 10 * time.Second, PerAddress: 1000}, func() time.Time { return now })
		var taken []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "attempts") {
			now = now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "pause")) * time.Second)
			a, after := l.take("ann", addr)
			if a == nil {
				now = now.Add(after)
				if a, _ = l.take("ann", addr); a == nil {
					t.Fatal("refused after the time that was told")
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "undo") == 0 {
				a.undo()
				continue
			}
			taken = append(taken, now)
			for i := range taken {
				n, stretch := len(taken)-i, now.Sub(taken[i])
				if most := 3 + int(stretch/(10*time.Second)); n > most {
					t.Fatalf("%d attempts in %s", n, stretch)
				}
			}
		}
	})
}

func TestUnknownUsersCostAsMuchAsKnownOnes(t *testing.T) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Kinds: Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	svc, err := New(Config{Store: s, Logger: slog.New(slog.DiscardHandler), BcryptCost: bcrypt.MinCost + 1})
	if err != nil {
		t.Fatal(err)
	}
	u, err := svc.CreateUser(t.Context(), UserInput{Name: "ann", Role: RoleView, Password: "x"})
	if err != nil {
		t.Fatal(err)
	}
	decoy, err := bcrypt.Cost(svc.decoy)
	if err != nil {
		t.Fatal(err)
	}
	if real, err := bcrypt.Cost([]byte(u.Spec.PasswordHash)); err != nil || real != decoy {
		t.Errorf("cost %d and %d, %v", real, decoy, err)
	}
}
