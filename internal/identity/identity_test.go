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
	f.svc = f.service(deploymentKey)
}

var deploymentKey = []byte("the key of this deployment")

func (f *fixture) service(key []byte) *identity.Service {
	f.t.Helper()
	svc, err := identity.New(identity.Config{
		Store: f.store, Logger: slog.New(slog.NewTextHandler(f.logs, nil)), BcryptCost: bcrypt.MinCost, Now: f.clock.now, SigningKey: key,
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
	one, two := a.service([]byte("one key")), a.service([]byte("another key"))
	l, err := one.Login(a.ctx, "ann", "pw-ann", home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Verify(a.ctx, l.Token); !errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("signed with another key: %v", err)
	}
	if _, err := a.service([]byte("one key")).Verify(a.ctx, l.Token); err != nil {
		t.Errorf("signed with the same key: %v", err)
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
		deadline := time.Now().Add(60 * time.Second)
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
	other := f.service(deploymentKey) // another replica on the same store
	if _, err := other.Verify(f.ctx, token); err != nil {
		t.Fatal(err)
	}
	if _, err := other.DeleteUser(f.ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		if _, err := f.svc.Verify(f.ctx, token); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the deletion was not noticed")
		}
	}
}
