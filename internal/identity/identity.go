// Package identity knows who calls: users with one role each, their sessions and API tokens.
//
// A credential is a signed token whose random id the store holds as a hash. It is good for as long as that record
// and its user exist: deleting, demoting and logging out take effect with the transaction that does it.
package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

var (
	// ErrUnauthenticated tells that the credential is missing, malformed, expired or revoked, or name and password do not match.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrForbidden tells that the caller lost the right to do this while the request was on its way.
	ErrForbidden = errors.New("the caller is not an administrator any more")
	// ErrLastAdmin tells that the change would leave nobody who can administer users.
	ErrLastAdmin = errors.New("the last administrator can be neither deleted nor demoted: make another user an administrator first")
	// ErrNotSession tells that only a session can be logged out.
	ErrNotSession = errors.New("an API token cannot be logged out: revoke it instead")
)

// InvalidError lists the faults of a user or token that was to be stored.
type InvalidError struct{ Faults []Fault }

// Fault is one field and what is wrong with it.
type Fault struct{ Field, Message string }

func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		texts[i] = f.Field + ": " + f.Message
	}
	return strings.Join(texts, "; ")
}

// about says which object an error of the store is about, in place of the store's own words.
func about(object string, err error) error {
	for _, known := range []error{store.ErrNotFound, store.ErrExists, store.ErrConflict} {
		if errors.Is(err, known) {
			return fmt.Errorf("%s: %w", object, known)
		}
	}
	return fmt.Errorf("%s: %w", object, err)
}

func userText(name string) string { return fmt.Sprintf("user %q", clip(name)) }
func tokenText(user, name string) string {
	return fmt.Sprintf("token %q of user %q", clip(name), clip(user))
}

// LimitedError tells that too many logins failed; After is when the next one is let through.
type LimitedError struct{ After time.Duration }

func (e *LimitedError) Error() string {
	return fmt.Sprintf("too many failed logins; try again in %s", e.After.Round(time.Second))
}

// Role is what a user may do. Each role includes the one before.
type Role string

// The roles.
const (
	RoleView  Role = "view"  // read everything but secrets and users
	RoleEdit  Role = "edit"  // change tenants, node groups, machines, patches; read secrets
	RoleAdmin Role = "admin" // everything
)

func (r Role) rank() int {
	switch r {
	case RoleView:
		return 1
	case RoleEdit:
		return 2
	case RoleAdmin:
		return 3
	}
	return 0
}

// Valid tells whether r is one of the roles.
func (r Role) Valid() bool { return r.rank() > 0 }

// Allows tells whether r includes what needs the other role.
func (r Role) Allows(needed Role) bool { return needed.Valid() && r.rank() >= needed.rank() }

// CredentialKind tells how a caller proved who it is.
type CredentialKind string

// The credential kinds.
const (
	KindSession CredentialKind = "session"
	KindToken   CredentialKind = "token"
)

// Principal is an authenticated caller.
type Principal struct {
	User string
	// UID of the user: another user made under the same name is somebody else.
	UID  string
	Role Role
	Kind CredentialKind
	// TokenID is the stored name of the session or API token.
	TokenID   string
	ExpiresAt time.Time
}

type principalKey struct{}

// NewContext is ctx with its caller.
func NewContext(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// FromContext is the caller of the request that ctx belongs to, or nil: the plane itself.
func FromContext(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}

// LabelUser on tokens and sessions names their user.
const LabelUser = "rezuscloud.io/user"

// Kinds lists the kinds of this package, for opening a store.
func Kinds() []store.Kind { return []store.Kind{Users.Kind, Tokens.Kind, Sessions.Kind} }

// User is a person or robot with one role.
type User = store.Resource[UserSpec, UserStatus]

// Users is the kind of User. Index "role" finds them by role.
var Users = store.Type[UserSpec, UserStatus]{Kind: store.Kind{
	Name: "user", Version: 1,
	Indexes: map[string]func(*store.Object) []string{"role": roleIndex},
}}

// UserSpec is a user's account. The hash never leaves the server.
type UserSpec struct {
	Role         Role   `json:"role"`
	PasswordHash string `json:"passwordHash"` // bcrypt
}

// UserStatus is what became of the account.
type UserStatus struct {
	LastLogin *time.Time `json:"lastLogin,omitempty"`
	// ActiveTokens counts the API tokens that are neither revoked nor expired; it is computed when read.
	ActiveTokens int `json:"-"`
}

func roleIndex(o *store.Object) []string {
	var spec UserSpec
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return nil
	}
	return []string{string(spec.Role)}
}

// Token is a long-lived credential with the rights of its user. Its stored name is "<user>/<name>".
type Token = store.Resource[TokenSpec, TokenStatus]

// Tokens is the kind of Token.
var Tokens = store.Type[TokenSpec, TokenStatus]{Kind: store.Kind{Name: "apitoken", Version: 1}}

// TokenSpec is the record of an API token.
type TokenSpec struct {
	ExpiresAt time.Time `json:"expiresAt"`
	UserUID   string    `json:"userUid"`
	// IDHash is the hexadecimal SHA-256 of the token's id.
	IDHash string `json:"idHash"`
}

// TokenStatus tells how an API token is used.
type TokenStatus struct {
	LastUsed *time.Time `json:"lastUsed,omitempty"` // to the minute
}

// Session is a login. Its stored name is "<user>/<a prefix of the hash>".
type Session = store.Resource[SessionSpec, SessionStatus]

// Sessions is the kind of Session.
var Sessions = store.Type[SessionSpec, SessionStatus]{Kind: store.Kind{Name: "session", Version: 1}}

// SessionSpec is the record of a login.
type SessionSpec struct {
	ExpiresAt time.Time `json:"expiresAt"`
	UserUID   string    `json:"userUid"`
	IDHash    string    `json:"idHash"`
}

// SessionStatus is empty.
type SessionStatus struct{}

// tokenName is the stored name of a user's token or session.
func tokenName(user, name string) string { return user + "/" + name }
