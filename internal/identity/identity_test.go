package identity_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

var home = netip.MustParseAddr("192.0.2.1")

// clock is moved by hand.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

type fixture struct {
	t     testing.TB
	ctx   context.Context
	path  string
	store store.Store
	svc   *identity.Service
	clock *clock
	logs  *strings.Builder
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, ctx: t.Context(), path: filepath.Join(t.TempDir(), "store.db"), clock: &clock{at: time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)}, logs: &strings.Builder{}}
	f.open()
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	s, err := sqlite.Open(f.ctx, f.path, sqlite.Options{Kinds: identity.Kinds()})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { s.Close() })
	f.store = s
	f.svc = f.service(nil)
}

func (f *fixture) service(root []byte) *identity.Service {
	f.t.Helper()
	svc, err := identity.New(f.ctx, identity.Config{
		Store: f.store, Logger: slog.New(slog.NewTextHandler(f.logs, nil)), BcryptCost: bcrypt.MinCost, Now: f.clock.now, Root: root,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return svc
}

func (f *fixture) user(name string, role identity.Role) *identity.User {
	f.t.Helper()
	u, err := f.svc.CreateUser(f.ctx, identity.UserInput{Name: name, Role: role, Password: "pw-" + name})
	if err != nil {
		f.t.Fatal(err)
	}
	return u
}

func (f *fixture) login(name string) string {
	f.t.Helper()
	l, err := f.svc.Login(f.ctx, name, "pw-"+name, home)
	if err != nil {
		f.t.Fatal(err)
	}
	return l.Token
}

func (f *fixture) as(token string) context.Context {
	f.t.Helper()
	p, err := f.svc.Verify(f.ctx, token)
	if err != nil {
		f.t.Fatal(err)
	}
	return identity.NewContext(f.ctx, p)
}

func (f *fixture) refused(token string) {
	f.t.Helper()
	if p, err := f.svc.Verify(f.ctx, token); !errors.Is(err, identity.ErrUnauthenticated) {
		f.t.Errorf("the credential still works: %+v, %v", p, err)
	}
}

func (f *fixture) works(token string) {
	f.t.Helper()
	if _, err := f.svc.Verify(f.ctx, token); err != nil {
		f.t.Errorf("the credential does not work: %v", err)
	}
}

func TestTheFirstAdministratorIsMadeOnce(t *testing.T) {
	f := newFixture(t)
	generated, err := f.svc.Bootstrap(f.ctx, "")
	if err != nil || len(generated) < 20 {
		t.Fatalf("%q, %v", generated, err)
	}
	if l, err := f.svc.Login(f.ctx, "admin", generated, home); err != nil || l.Role != identity.RoleAdmin {
		t.Errorf("%+v, %v", l, err)
	}
	for _, password := range []string{"", "other"} {
		if again, err := f.svc.Bootstrap(f.ctx, password); again != "" || err != nil {
			t.Errorf("bootstrapped again: %q, %v", again, err)
		}
	}
	if _, err := f.svc.Login(f.ctx, "admin", "other", home); err == nil {
		t.Error("the password was replaced")
	}
	if strings.Contains(f.logs.String(), generated) {
		t.Error("the password is in the log")
	}
}

func TestTheFirstAdministratorsPasswordIsGiven(t *testing.T) {
	f := newFixture(t)
	if generated, err := f.svc.Bootstrap(f.ctx, "given"); generated != "" || err != nil {
		t.Fatal(generated, err)
	}
	if _, err := f.svc.Login(f.ctx, "admin", "given", home); err != nil {
		t.Error(err)
	}
	other := newFixture(t)
	if _, err := other.svc.Bootstrap(other.ctx, strings.Repeat("x", 73)); err == nil {
		t.Error("a password of 73 bytes was taken")
	}
}

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

func TestCredentialsAndRevocationsSurviveARestart(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	kept, ended := f.login("ann"), f.login("ann")
	if err := f.svc.Logout(f.ctx, identity.FromContext(f.as(ended))); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	f.open()
	f.works(kept)
	f.refused(ended)
}

func TestTokensOfAnotherDeploymentAreRefused(t *testing.T) {
	a, b := newFixture(t), newFixture(t)
	a.user("ann", identity.RoleAdmin)
	b.user("ann", identity.RoleAdmin)
	b.refused(a.login("ann"))
	one, two := a.service([]byte("one root secret")), a.service([]byte("another root secret"))
	l, err := one.Login(a.ctx, "ann", "pw-ann", home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Verify(a.ctx, l.Token); !errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("signed with another root: %v", err)
	}
	if _, err := a.service([]byte("one root secret")).Verify(a.ctx, l.Token); err != nil {
		t.Errorf("signed with the same root: %v", err)
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	good := f.login("ann")
	f.works(good)
	parts := strings.Split(good, ".")
	claims := jwt.MapClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(good, claims); err != nil {
		t.Fatal(err)
	}
	sign := func(m jwt.SigningMethod, key any) string {
		text, err := jwt.NewWithClaims(m, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	flipped := []byte(good)
	flipped[len(parts[0])+10] ^= 1
	for name, token := range map[string]string{
		"alg none":      sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType),
		"another key":   sign(jwt.SigningMethodHS256, []byte("0123456789abcdef0123456789abcdef")),
		"HS512":         sign(jwt.SigningMethodHS512, []byte("0123456789abcdef0123456789abcdef")),
		"empty key":     sign(jwt.SigningMethodHS256, []byte{}),
		"no signature":  parts[0] + "." + parts[1] + ".",
		"tampered":      string(flipped),
		"two parts":     parts[0] + "." + parts[1],
		"empty":         "",
		"spaces":        "   ",
		"enormous":      strings.Repeat("a", 1<<20),
		"trailing":      good + "x",
		"trailing dot":  good + ".",
		"leading space": " " + good,
	} {
		if p, err := f.svc.Verify(f.ctx, token); !errors.Is(err, identity.ErrUnauthenticated) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func TestTheStoreHoldsNoCredential(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	session := f.login("ann")
	_, token, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{session, token} {
		var c jwt.RegisteredClaims
		if _, _, err := jwt.NewParser().ParseUnverified(text, &c); err != nil {
			t.Fatal(err)
		}
		err := f.store.View(f.ctx, func(r store.Reader) error {
			for _, k := range identity.Kinds() {
				l, err := r.List(store.Query{Kind: k.Name})
				if err != nil {
					return err
				}
				for _, o := range l.Objects {
					if all := fmt.Sprintf("%s %s %s", o.Name, o.Spec, o.Status); strings.Contains(all, c.ID) || strings.Contains(all, text) || strings.Contains(all, "pw-ann") {
						t.Errorf("%s holds a credential", o.Name)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if logs := f.logs.String(); strings.Contains(logs, session) || strings.Contains(logs, token) {
		t.Error("the log holds a credential")
	}
}

func TestDemotionAndDeletionTakeEffectAtOnce(t *testing.T) {
	f := newFixture(t)
	f.user("root", identity.RoleAdmin)
	ann := f.user("ann", identity.RoleAdmin)
	session := f.login("ann")
	_, token, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	f.works(session)
	f.works(token)
	now, err := f.svc.User(f.ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.UpdateUser(f.ctx, identity.UserInput{Name: "ann", Role: identity.RoleView, Revision: now.Revision}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{session, token} {
		if p, err := f.svc.Verify(f.ctx, text); err != nil || p.Role != identity.RoleView {
			t.Errorf("after the demotion: %+v, %v", p, err)
		}
	}
	if _, err := f.svc.DeleteUser(f.ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	f.refused(session)
	f.refused(token)
	if again := f.user("ann", identity.RoleAdmin); again.UID == ann.UID {
		t.Error("the new user has the old one's uid")
	}
	f.refused(session)
	f.refused(token)
	if _, err := f.svc.Token(f.ctx, "ann", "ci"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the new user has the old one's token: %v", err)
	}
}

func TestANewPasswordEndsTheOtherSessions(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleAdmin)
	mine, other := f.login("ann"), f.login("ann")
	_, token, _ := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann"})
	u, err := f.svc.User(f.ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.UpdateUser(f.as(mine), identity.UserInput{Name: "ann", Role: identity.RoleAdmin, Password: "new", Revision: u.Revision}); err != nil {
		t.Fatal(err)
	}
	f.works(mine)
	f.works(token)
	f.refused(other)
	if _, err := f.svc.Login(f.ctx, "ann", "new", home); err != nil {
		t.Error(err)
	}
}

func TestSomebodyAlwaysAdministers(t *testing.T) {
	f := newFixture(t)
	ann := f.user("ann", identity.RoleAdmin)
	demote := func(u *identity.User) error {
		_, err := f.svc.UpdateUser(f.ctx, identity.UserInput{Name: u.Name, Role: identity.RoleEdit, Revision: u.Revision})
		return err
	}
	if err := demote(ann); !errors.Is(err, identity.ErrLastAdmin) {
		t.Errorf("demoted: %v", err)
	}
	if _, err := f.svc.DeleteUser(f.ctx, "ann"); !errors.Is(err, identity.ErrLastAdmin) {
		t.Errorf("deleted: %v", err)
	}
	// Two administrators who remove each other at once: one stays.
	bob := f.user("bob", identity.RoleAdmin)
	errs := make(chan error, 2)
	go func() { errs <- demote(ann) }()
	go func() { errs <- demote(bob) }()
	a, b := <-errs, <-errs
	if (a == nil) == (b == nil) {
		t.Errorf("%v, %v", a, b)
	}
}

func TestACallerWhoLostItsRightMeanwhileChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.user("root", identity.RoleAdmin)
	f.user("ann", identity.RoleAdmin)
	inFlight := f.as(f.login("ann")) // authenticated, not yet in its transaction
	if _, err := f.svc.DeleteUser(f.ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.CreateUser(inFlight, identity.UserInput{Name: "eve", Role: identity.RoleAdmin, Password: "x"}); !errors.Is(err, identity.ErrForbidden) {
		t.Errorf("created a user: %v", err)
	}
	if _, _, err := f.svc.CreateToken(inFlight, identity.TokenInput{User: "root"}); !errors.Is(err, identity.ErrForbidden) {
		t.Errorf("created a token: %v", err)
	}
	if _, err := f.svc.DeleteUser(inFlight, "root"); !errors.Is(err, identity.ErrForbidden) {
		t.Errorf("deleted a user: %v", err)
	}
}

func TestRevocationsRaceWithUse(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	for range 50 {
		_, token, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci"})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					_, _ = f.svc.Verify(f.ctx, token)
				}
			})
		}
		if _, err := f.svc.RevokeToken(f.ctx, "ann", "ci"); err != nil {
			t.Fatal(err)
		}
		f.refused(token)
		wg.Wait()
		f.refused(token)
	}
}

func TestInvalidUsers(t *testing.T) {
	f := newFixture(t)
	hash := func(cost int) string {
		b, err := bcrypt.GenerateFromPassword([]byte("x"), cost)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ok := hash(bcrypt.MinCost)
	for name, c := range map[string]struct {
		in    identity.UserInput
		field string
	}{
		"name":      {identity.UserInput{Name: "Ann!", Role: "view", Password: "x"}, "metadata.name"},
		"no name":   {identity.UserInput{Role: "view", Password: "x"}, "metadata.name"},
		"path":      {identity.UserInput{Name: "a/b", Role: "view", Password: "x"}, "metadata.name"},
		"role":      {identity.UserInput{Name: "ann", Role: "root", Password: "x"}, "spec.role"},
		"empty":     {identity.UserInput{Name: "ann", Role: "view"}, "spec.password"},
		"long":      {identity.UserInput{Name: "ann", Role: "view", Password: strings.Repeat("ä", 37)}, "spec.password"},
		"both":      {identity.UserInput{Name: "ann", Role: "view", Password: "x", PasswordHash: ok}, "spec.passwordHash"},
		"no hash":   {identity.UserInput{Name: "ann", Role: "view", PasswordHash: "secret"}, "spec.passwordHash"},
		"long hash": {identity.UserInput{Name: "ann", Role: "view", PasswordHash: ok + "x"}, "spec.passwordHash"},
		"slow hash": {identity.UserInput{Name: "ann", Role: "view", PasswordHash: "$2a$31$" + ok[7:]}, "spec.passwordHash"},
		"label":     {identity.UserInput{Name: "ann", Role: "view", Password: "x", Labels: map[string]string{"a b": "c"}}, "metadata.labels[a b]"},
	} {
		var invalid *identity.InvalidError
		_, err := f.svc.CreateUser(f.ctx, c.in)
		if !errors.As(err, &invalid) || invalid.Faults[0].Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.svc.CreateUser(f.ctx, identity.UserInput{Name: "imported", Role: "view", PasswordHash: ok}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Login(f.ctx, "imported", "x", home); err != nil {
		t.Errorf("an imported hash: %v", err)
	}
}

func TestTokenExpiry(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	now := f.clock.now()
	var invalid *identity.InvalidError
	for _, at := range []time.Time{now, now.Add(-time.Hour), now.Add(11 * 365 * 24 * time.Hour)} {
		if _, _, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci", ExpiresAt: at}); !errors.As(err, &invalid) || invalid.Faults[0].Field != "spec.expiresAt" {
			t.Errorf("%s: %v", at, err)
		}
	}
	if _, _, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "nobody"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a token of nobody: %v", err)
	}
	_, text, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci", ExpiresAt: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci"}); !errors.Is(err, store.ErrExists) {
		t.Errorf("the same name again: %v", err)
	}
	active := func() int {
		u, err := f.svc.User(f.ctx, "ann")
		if err != nil {
			t.Fatal(err)
		}
		return u.Status.ActiveTokens
	}
	if n := active(); n != 1 {
		t.Errorf("%d active", n)
	}
	f.clock.move(time.Hour)
	f.refused(text)
	if n := active(); n != 0 {
		t.Errorf("%d active after the expiry", n)
	}
}

func TestUseOfTokensIsRecordedOnceAMinute(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	_, text, err := f.svc.CreateToken(f.ctx, identity.TokenInput{User: "ann", Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan error, 1)
	go func() { done <- f.svc.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	lastUsed := func(want time.Time) int64 {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for {
			f.works(text)
			tok, err := f.svc.Token(f.ctx, "ann", "ci")
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Status.LastUsed; got != nil && got.Equal(want) {
				return tok.Revision
			}
			if time.Now().After(deadline) {
				t.Fatalf("last used is %v, not %v", tok.Status.LastUsed, want)
			}
		}
	}
	first := f.clock.now()
	revision := lastUsed(first)
	f.clock.move(59 * time.Second)
	if again := lastUsed(first); again != revision {
		t.Error("a second use within a minute was written")
	}
	f.clock.move(time.Second)
	lastUsed(f.clock.now())
}

func TestChangesBySomebodyElseAreNoticed(t *testing.T) {
	f := newFixture(t)
	f.user("ann", identity.RoleView)
	token := f.login("ann")
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan error, 1)
	go func() { done <- f.svc.Run(ctx) }()
	defer func() { cancel(); <-done }()
	f.works(token)
	other := f.service(nil) // another replica on the same store
	if _, err := other.Verify(f.ctx, token); err != nil {
		t.Fatal(err)
	}
	if _, err := other.DeleteUser(f.ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := f.svc.Verify(f.ctx, token); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the deletion was not noticed")
		}
	}
}
