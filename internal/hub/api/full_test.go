package api_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On a real disk that is full a mutation is refused whole, and accepted again when there is room.
func TestAFullDiskRefusesMutationsWholeUntilThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("mounting a small disk needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	p := newPlaneIn(t, dir)
	p.node("node-a")
	cfg := p.config("command: one")
	p.run("node-a", "orders", cfg)
	before := p.get(orders).field("desired.generation").(float64)

	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	path, body := orders+"/desired-state", object{"state": "running", "config_version": cfg}
	accepted := 0
	var refused *answer
	for refused == nil && accepted < 10_000 {
		// The log of the database may have room that was taken before.
		if a := p.put(path, body, "Idempotency-Key", "full"+string(rune('a'+accepted%26))+p.get(orders).text("intent_id")); a.status == 202 {
			accepted++
		} else {
			refused = a
		}
	}
	if refused == nil {
		t.Fatal("the disk was not filled")
	}
	refused.refused(503, "repository_unavailable")
	s := p.get(orders).want(200)
	if g := s.field("desired.generation"); g != before+float64(accepted) {
		t.Errorf("generation %v after %d accepted mutations from %v", g, accepted, before)
	}
	if n := p.get("/operations?page_size=1").field("total"); n != before+float64(accepted) {
		t.Errorf("%v operations for generation %v", n, s.field("desired.generation"))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.eventually("a mutation is accepted again", func() bool { return p.put(path, body).status == 202 })
	// What was refused is audited when there is room again.
	p.eventually("the refusal is audited", func() bool {
		return p.send("admin", "GET", "/audit?outcome=rejected", nil).want(200).field("total").(float64) > 0
	})
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 4 << 10} {
		for block := make([]byte, size); ; {
			if _, err := f.Write(block); err != nil {
				break
			}
		}
	}
}
