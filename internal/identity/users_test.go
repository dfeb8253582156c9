package identity_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/store"
)

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
