package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/internal/kernel/store"
)

// maxSessions of one user; the oldest ones end when there are more.
const maxSessions = 500

// Login is a session that was just opened.
type Login struct {
	Token     string
	ExpiresAt time.Time
	User      string
	Role      Role
}

// Login opens a session. ErrUnauthenticated does not tell whether the user exists, nor does the time it takes;
// *LimitedError when too many attempts failed.
func (s *Service) Login(ctx context.Context, name, password string, from netip.Addr) (*Login, error) {
	attempt, after := s.limits.take(name, from)
	if attempt == nil {
		return nil, &LimitedError{After: after}
	}
	user, err := s.checkPassword(ctx, name, password)
	if err != nil {
		if !errors.Is(err, ErrUnauthenticated) {
			attempt.undo()
		} else {
			s.config.Logger.Warn("login failed", slog.String("user", clip(name)), slog.String("remote", from.String()))
		}
		return nil, err
	}
	attempt.succeed()
	login, err := s.open(ctx, user)
	if err != nil {
		return nil, err
	}
	s.config.Logger.Info("logged in", slog.String("user", login.User), slog.String("remote", from.String()))
	return login, nil
}

func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// checkPassword compares one hash, whether or not the user exists.
func (s *Service) checkPassword(ctx context.Context, name, password string) (*User, error) {
	var user *User
	err := s.config.Store.View(ctx, func(r store.Reader) (err error) {
		user, err = Users.Get(r, name)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("look up a user: %w", err)
	}
	hash, possible := s.decoy, false
	if user != nil {
		hash, possible = []byte(user.Spec.PasswordHash), true
	}
	if len(password) > maxPassword || password == "" {
		// bcrypt would ignore the rest.
		password, possible = "", false
	}
	release, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !possible {
		return nil, fmt.Errorf("%w: wrong user name or password", ErrUnauthenticated)
	}
	return user, nil
}

// open stores a session for the user, unless the account changed since its password was checked.
func (s *Service) open(ctx context.Context, checked *User) (*Login, error) {
	now := s.config.Now().UTC()
	id, hash := newID()
	sn := &Session{Metadata: store.Metadata{
		Name:   tokenName(checked.Name, hash[:32]),
		Labels: map[string]string{LabelUser: checked.Name},
	}, Spec: SessionSpec{ExpiresAt: now.Add(s.config.SessionTTL).Truncate(time.Second), UserUID: checked.UID, IDHash: hash}}
	var role Role
	err := s.config.Store.Update(ctx, func(tx store.Tx) error {
		user, err := Users.Get(tx, checked.Name)
		if err != nil {
			return err
		}
		if user.UID != checked.UID || user.Spec.PasswordHash != checked.Spec.PasswordHash || user.Deleting() {
			return ErrUnauthenticated
		}
		role = user.Spec.Role
		if err := makeRoom(tx, user.Name, now); err != nil {
			return err
		}
		created := *sn
		if err := Sessions.Create(tx, &created); err != nil {
			return err
		}
		at := now.Truncate(time.Second)
		user.Status.LastLogin = &at
		return Users.Update(tx, user)
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrUnauthenticated) {
		return nil, fmt.Errorf("%w: wrong user name or password", ErrUnauthenticated)
	}
	if err != nil {
		return nil, fmt.Errorf("open a session: %w", err)
	}
	token, err := s.signer.sign(claims{UserUID: checked.UID, Kind: KindSession, Record: sn.Name, RegisteredClaims: jwt.RegisteredClaims{
		Subject: checked.Name, ID: id, IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(sn.Spec.ExpiresAt),
	}})
	if err != nil {
		return nil, err
	}
	return &Login{Token: token, ExpiresAt: sn.Spec.ExpiresAt, User: checked.Name, Role: role}, nil
}

// makeRoom ends the user's expired sessions, and the oldest ones where there are too many.
func makeRoom(tx store.Tx, user string, now time.Time) error {
	sessions, _, err := Sessions.List(tx, store.Query{Prefix: user + "/"})
	if err != nil {
		return err
	}
	var ended []string
	sessions = slices.DeleteFunc(sessions, func(sn *Session) bool {
		expired := !now.Before(sn.Spec.ExpiresAt)
		if expired {
			ended = append(ended, sn.Name)
		}
		return expired
	})
	slices.SortFunc(sessions, func(a, b *Session) int { return a.CreatedAt.Compare(b.CreatedAt) })
	for len(sessions) >= maxSessions {
		ended = append(ended, sessions[0].Name)
		sessions = sessions[1:]
	}
	return deleteAll(tx, Sessions.Kind.Name, ended)
}

// Logout ends the caller's session at once. ErrNotSession for an API token.
func (s *Service) Logout(ctx context.Context, p *Principal) error {
	if p.Kind != KindSession {
		return ErrNotSession
	}
	err := s.config.Store.Update(ctx, func(tx store.Tx) error {
		return deleteAll(tx, Sessions.Kind.Name, []string{p.TokenID})
	})
	if err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	s.live.forgetToken(Sessions.Kind.Name, p.TokenID)
	return nil
}
