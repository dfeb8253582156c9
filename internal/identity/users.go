package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/util/validation"

	"freehold.dev/freehold/internal/kernel/store"
)

// UserInput is what an administrator declares of a user.
type UserInput struct {
	Name string
	// UID, if given, must be that of the user to update.
	UID string
	// Revision that an update was made from.
	Revision            int64
	Labels, Annotations map[string]string
	Role                Role
	// Password, or PasswordHash (bcrypt). An update with neither keeps the password.
	Password, PasswordHash string
}

func (in UserInput) faults() []Fault {
	var faults []Fault
	add := func(field, message string) { faults = append(faults, Fault{field, message}) }
	for _, m := range validation.IsDNS1123Label(in.Name) {
		add("metadata.name", m)
	}
	faults = append(faults, metadataFaults(in.Labels, in.Annotations)...)
	if !in.Role.Valid() {
		add("spec.role", "must be one of view, edit, admin")
	}
	switch cost, err := bcrypt.Cost([]byte(in.PasswordHash)); {
	case in.Password != "" && in.PasswordHash != "":
		add("spec.passwordHash", "give either a password or its hash, not both")
	case in.PasswordHash != "" && (err != nil || len(in.PasswordHash) != 60):
		add("spec.passwordHash", "must be a bcrypt hash (60 characters, beginning with $2a$, $2b$ or $2y$)")
	case in.PasswordHash != "" && cost > maxBcryptCost:
		add("spec.passwordHash", fmt.Sprintf("must not have a cost above %d", maxBcryptCost))
	case len(in.Password) > maxPassword:
		add("spec.password", fmt.Sprintf("must not be longer than %d bytes", maxPassword))
	}
	return faults
}

func metadataFaults(labels, annotations map[string]string) []Fault {
	var faults []Fault
	for k, v := range labels {
		for _, m := range validation.IsQualifiedName(k) {
			faults = append(faults, Fault{"metadata.labels[" + clip(k) + "]", m})
		}
		for _, m := range validation.IsValidLabelValue(v) {
			faults = append(faults, Fault{"metadata.labels[" + clip(k) + "]", m})
		}
	}
	for k := range annotations {
		for _, m := range validation.IsQualifiedName(k) {
			faults = append(faults, Fault{"metadata.annotations[" + clip(k) + "]", m})
		}
	}
	return faults
}

func invalid(faults []Fault) error {
	if len(faults) == 0 {
		return nil
	}
	return &InvalidError{Faults: faults}
}

// mayAdminister checks again, inside the transaction, that the caller is still an administrator.
func mayAdminister(ctx context.Context, r store.Reader) error {
	p := FromContext(ctx)
	if p == nil {
		return nil // the plane itself
	}
	u, err := Users.Get(r, p.User)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err != nil || u.UID != p.UID || u.Spec.Role != RoleAdmin {
		return ErrForbidden
	}
	return nil
}

// CreateUser stores a new user. *InvalidError, store.ErrExists.
func (s *Service) CreateUser(ctx context.Context, in UserInput) (*User, error) {
	faults := in.faults()
	if in.Password == "" && in.PasswordHash == "" {
		faults = append(faults, Fault{"spec.password", "give the user a password"})
	}
	if err := invalid(faults); err != nil {
		return nil, err
	}
	hash, err := s.hash(ctx, in)
	if err != nil {
		return nil, err
	}
	var user *User
	err = s.config.Store.Update(ctx, func(tx store.Tx) error {
		if err := mayAdminister(ctx, tx); err != nil {
			return err
		}
		user = &User{
			Metadata: store.Metadata{Name: in.Name, Labels: in.Labels, Annotations: in.Annotations},
			Spec:     UserSpec{Role: in.Role, PasswordHash: hash},
		}
		return Users.Create(tx, user)
	})
	if err != nil {
		return nil, about(userText(in.Name), err)
	}
	return user, nil
}

// UpdateUser replaces role, password, labels and annotations. A new role, and a new password's end of the user's
// other sessions, take effect at once. *InvalidError, ErrLastAdmin, store.ErrConflict, store.ErrNotFound.
func (s *Service) UpdateUser(ctx context.Context, in UserInput) (*User, error) {
	if err := invalid(in.faults()); err != nil {
		return nil, err
	}
	hash, err := s.hash(ctx, in)
	if err != nil {
		return nil, err
	}
	var user *User
	err = s.config.Store.Update(ctx, func(tx store.Tx) (err error) {
		if err = mayAdminister(ctx, tx); err != nil {
			return err
		}
		if user, err = Users.Get(tx, in.Name); err != nil {
			return err
		}
		if user.Revision != in.Revision || in.UID != "" && in.UID != user.UID {
			return store.ErrConflict
		}
		if user.Spec.Role == RoleAdmin && in.Role != RoleAdmin {
			if err = anotherAdmin(tx, user.Name); err != nil {
				return err
			}
		}
		user.Spec.Role = in.Role
		user.Labels, user.Annotations = in.Labels, in.Annotations
		if hash != "" && hash != user.Spec.PasswordHash {
			user.Spec.PasswordHash = hash
			if err = endSessions(ctx, tx, user.Name); err != nil {
				return err
			}
		}
		if err = Users.Update(tx, user); err != nil {
			return err
		}
		return countTokens(tx, s.config.Now(), user)
	})
	if err != nil {
		return nil, about(userText(in.Name), err)
	}
	s.live.forgetUser(in.Name)
	return user, nil
}

// endSessions ends a user's sessions, but for the one that asks for it.
func endSessions(ctx context.Context, tx store.Tx, user string) error {
	sessions, err := tx.List(store.Query{Kind: Sessions.Kind.Name, Prefix: user + "/"})
	if err != nil {
		return err
	}
	var names []string
	for _, o := range sessions.Objects {
		if p := FromContext(ctx); p == nil || p.Kind != KindSession || p.TokenID != o.Name {
			names = append(names, o.Name)
		}
	}
	return deleteAll(tx, Sessions.Kind.Name, names)
}

// anotherAdmin answers ErrLastAdmin unless there is an administrator beside the named one.
func anotherAdmin(r store.Reader, name string) error {
	admins, err := r.List(store.Query{Kind: Users.Kind.Name, Index: "role", Value: string(RoleAdmin)})
	if err != nil {
		return err
	}
	for _, o := range admins.Objects {
		if o.Name != name && !o.Deleting() {
			return nil
		}
	}
	return ErrLastAdmin
}

// DeleteUser removes a user with its tokens and sessions; all stop working at once. It answers the user as it was.
// ErrLastAdmin, store.ErrNotFound.
func (s *Service) DeleteUser(ctx context.Context, name string) (*User, error) {
	var user *User
	err := s.config.Store.Update(ctx, func(tx store.Tx) (err error) {
		if err = mayAdminister(ctx, tx); err != nil {
			return err
		}
		if user, err = Users.Get(tx, name); err != nil {
			return err
		}
		if user.Spec.Role == RoleAdmin {
			if err = anotherAdmin(tx, name); err != nil {
				return err
			}
		}
		for _, kind := range []string{Tokens.Kind.Name, Sessions.Kind.Name} {
			l, err := tx.List(store.Query{Kind: kind, Prefix: name + "/"})
			if err != nil {
				return err
			}
			for _, o := range l.Objects {
				if _, err := tx.Delete(kind, o.Name, 0); err != nil {
					return err
				}
			}
		}
		_, err = tx.Delete(Users.Kind.Name, name, 0)
		return err
	})
	if err != nil {
		return nil, about(userText(name), err)
	}
	s.live.forgetUser(name)
	s.config.Logger.Info("deleted a user", slog.String("user", name))
	return user, nil
}

// User answers one user. store.ErrNotFound.
func (s *Service) User(ctx context.Context, name string) (*User, error) {
	var user *User
	err := s.config.Store.View(ctx, func(r store.Reader) (err error) {
		if user, err = Users.Get(r, name); err != nil {
			return err
		}
		return countTokens(r, s.config.Now(), user)
	})
	if err != nil {
		return nil, about(userText(name), err)
	}
	return user, nil
}

// Page is one page of a list, as of a revision.
type Page[R any] struct {
	Items    []R
	Total    int
	Revision int64
}

// Users answers one page of the users that q selects.
func (s *Service) Users(ctx context.Context, q store.Query) (*Page[*User], error) {
	page := &Page[*User]{}
	err := s.config.Store.View(ctx, func(r store.Reader) (err error) {
		if page.Items, page.Total, err = Users.List(r, q); err != nil {
			return err
		}
		page.Revision = r.Revision()
		for _, u := range page.Items {
			if err = countTokens(r, s.config.Now(), u); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return page, nil
}
