package identity_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"freehold.dev/freehold/internal/identity"
)

func TestWrongPasswordsAndNamesAreTheSame(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	for _, c := range [][2]string{
		{"ann", "wrong"}, {"ann", ""}, {"nobody", "pw-ann"}, {"", ""}, {"ann/x", "pw-ann"}, {"nobody", strings.Repeat("x", 100)},
	} {
		_, err := f.svc.Login(f.ctx, c[0], c[1], home)
		if !errors.Is(err, identity.ErrUnauthenticated) || !strings.Contains(err.Error(), "wrong user name or password") {
			t.Errorf("%q: %v", c, err)
		}
		f.clock.move(time.Hour)
	}
}

func TestLongPasswordsAreNotTruncated(t *testing.T) {
	f := newFixture(t)
	full := strings.Repeat("p", 72)
	if _, err := f.svc.CreateUser(f.ctx, identity.UserInput{Name: "ann", Role: identity.RoleView, Password: full}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Login(f.ctx, "ann", full, home); err != nil {
		t.Error(err)
	}
	if _, err := f.svc.Login(f.ctx, "ann", full+"x", home); !errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("73 bytes: %v", err)
	}
}

func TestFailedLoginsAreLimited(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	var limited *identity.LimitedError
	fail := func(from netip.Addr) error {
		_, err := f.svc.Login(f.ctx, "ann", "wrong", from)
		return err
	}
	for range 5 {
		if err := fail(home); errors.As(err, &limited) {
			t.Fatal("limited too early")
		}
	}
	if err := fail(home); !errors.As(err, &limited) || limited.After <= 0 {
		t.Fatalf("not limited: %v", err)
	}
	if _, err := f.svc.Login(f.ctx, "ann", "pw-ann", home); !errors.As(err, &limited) {
		t.Errorf("the right password was looked at: %v", err)
	}
	if _, err := f.svc.Login(f.ctx, "ann", "pw-ann", netip.MustParseAddr("192.0.2.2")); err != nil {
		t.Errorf("another address is locked out: %v", err)
	}
	f.clock.move(limited.After)
	if _, err := f.svc.Login(f.ctx, "ann", "pw-ann", home); err != nil {
		t.Errorf("after the time that was told: %v", err)
	}
	for range 5 {
		if err := fail(home); errors.As(err, &limited) {
			t.Error("a success did not start afresh")
		}
	}
}

func TestOneAddressCannotTryManyNames(t *testing.T) {
	f := newFixture(t)
	var limited *identity.LimitedError
	for i := range 60 {
		// One /64 is one client.
		from := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))
		if _, err := f.svc.Login(f.ctx, fmt.Sprintf("user-%d", i), "x", from); errors.As(err, &limited) {
			return
		}
	}
	t.Error("sixty names were tried")
}

func TestGuessesAtOnceShareNoAllowance(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	var wg sync.WaitGroup
	var mu sync.Mutex
	tried := 0
	for range 40 {
		wg.Go(func() {
			var limited *identity.LimitedError
			if _, err := f.svc.Login(f.ctx, "ann", "wrong", home); !errors.As(err, &limited) {
				mu.Lock()
				tried++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if tried > 5 {
		t.Errorf("%d guesses were looked at", tried)
	}
}

func TestLogoutEndsTheSessionAtOnce(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	one, two := f.login("ann"), f.login("ann")
	f.works(one)
	if err := f.svc.Logout(f.ctx, identity.FromContext(f.as(one))); err != nil {
		t.Fatal(err)
	}
	f.refused(one)
	f.works(two)
}

func TestSessionsExpire(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	token := f.login("ann")
	f.clock.move(identity.DefaultSessionTTL - time.Second)
	f.works(token)
	f.clock.move(time.Second)
	f.refused(token)
	f.login("ann")
	if n, err := f.svc.Sweep(f.ctx); err != nil || n != 0 {
		t.Errorf("the login left %d expired sessions, %v", n, err)
	}
	f.clock.move(identity.DefaultSessionTTL)
	if n, err := f.svc.Sweep(f.ctx); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
}
