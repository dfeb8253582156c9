package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"k8s.io/apimachinery/pkg/util/validation"

	"freehold.dev/freehold/internal/kernel/store"
)

const (
	// DefaultTokenTTL of API tokens that were asked for without an expiry.
	DefaultTokenTTL = 365 * 24 * time.Hour
	// MaxTokenTTL of API tokens.
	MaxTokenTTL = 10 * 365 * 24 * time.Hour
	// maxTokens of one user.
	maxTokens = 500
)

// TokenInput is what an administrator declares of an API token.
type TokenInput struct {
	User string
	// Name inside the user's tokens; empty: made up.
	Name                string
	Labels, Annotations map[string]string
	// ExpiresAt, if not zero, lies in the future.
	ExpiresAt time.Time
}

func (in TokenInput) faults(now time.Time) []Fault {
	var faults []Fault
	for _, m := range validation.IsDNS1123Label(in.Name) {
		faults = append(faults, Fault{"metadata.name", m})
	}
	faults = append(faults, metadataFaults(in.Labels, in.Annotations)...)
	if v, ok := in.Labels[LabelUser]; ok && v != in.User {
		faults = append(faults, Fault{"metadata.labels[" + LabelUser + "]", "is set by the server: leave it out"})
	}
	switch {
	case !in.ExpiresAt.After(now):
		faults = append(faults, Fault{"spec.expiresAt", "must lie in the future"})
	case in.ExpiresAt.Sub(now) > MaxTokenTTL:
		faults = append(faults, Fault{"spec.expiresAt", "must not be more than ten years away"})
	}
	return faults
}

// CreateToken makes an API token for a user and answers its text: the only time that it can be had. *InvalidError,
// store.ErrNotFound (the user), store.ErrExists.
func (s *Service) CreateToken(ctx context.Context, in TokenInput) (*Token, string, error) {
	now := s.config.Now().UTC()
	if in.Name == "" {
		in.Name = "token-" + strings.ToLower(rand.Text()[:10])
	}
	if in.ExpiresAt.IsZero() {
		in.ExpiresAt = now.Add(DefaultTokenTTL)
	}
	if err := invalid(in.faults(now)); err != nil {
		return nil, "", err
	}
	id, hash := newID()
	labels := map[string]string{LabelUser: in.User}
	for k, v := range in.Labels {
		labels[k] = v
	}
	var token *Token
	err := s.config.Store.Update(ctx, func(tx store.Tx) error {
		if err := mayAdminister(ctx, tx); err != nil {
			return err
		}
		user, err := Users.Get(tx, in.User)
		if err != nil {
			return about(userText(in.User), err)
		}
		have, err := tx.List(store.Query{Kind: Tokens.Kind.Name, Prefix: in.User + "/", Limit: 1})
		if err != nil {
			return err
		}
		if have.Total >= maxTokens {
			return &InvalidError{Faults: []Fault{{"metadata.name", fmt.Sprintf("the user has %d tokens already: revoke some first", maxTokens)}}}
		}
		token = &Token{
			Metadata: store.Metadata{Name: tokenName(in.User, in.Name), Labels: labels, Annotations: in.Annotations},
			Spec:     TokenSpec{ExpiresAt: in.ExpiresAt.UTC().Truncate(time.Second), UserUID: user.UID, IDHash: hash},
		}
		if err := Tokens.Create(tx, token); err != nil {
			return about(tokenText(in.User, in.Name), err)
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	text, err := s.signer.sign(claims{UserUID: token.Spec.UserUID, Kind: KindToken, Record: token.Name, RegisteredClaims: jwt.RegisteredClaims{
		Subject: in.User, ID: id, IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(token.Spec.ExpiresAt),
	}})
	if err != nil {
		return nil, "", err
	}
	s.config.Logger.Info("made an API token", slog.String("token", token.Name))
	return token, text, nil
}

// RevokeToken removes an API token, which stops working at once, and answers it as it was. store.ErrNotFound.
func (s *Service) RevokeToken(ctx context.Context, user, name string) (*Token, error) {
	var token *Token
	err := s.config.Store.Update(ctx, func(tx store.Tx) (err error) {
		if err = mayAdminister(ctx, tx); err != nil {
			return err
		}
		if token, err = Tokens.Get(tx, tokenName(user, name)); err != nil {
			return err
		}
		_, err = tx.Delete(Tokens.Kind.Name, token.Name, 0)
		return err
	})
	if err != nil {
		return nil, about(tokenText(user, name), err)
	}
	s.live.forgetToken(Tokens.Kind.Name, token.Name)
	s.config.Logger.Info("revoked an API token", slog.String("token", token.Name))
	return token, nil
}

// Token answers one API token of a user. store.ErrNotFound.
func (s *Service) Token(ctx context.Context, user, name string) (*Token, error) {
	var token *Token
	err := s.config.Store.View(ctx, func(r store.Reader) (err error) {
		token, err = Tokens.Get(r, tokenName(user, name))
		return err
	})
	if err != nil {
		return nil, about(tokenText(user, name), err)
	}
	return token, nil
}

// Tokens answers one page of a user's API tokens. store.ErrNotFound (the user).
func (s *Service) Tokens(ctx context.Context, user string, q store.Query) (*Page[*Token], error) {
	q.Prefix = user + "/"
	page := &Page[*Token]{}
	err := s.config.Store.View(ctx, func(r store.Reader) (err error) {
		if _, err = r.Get(Users.Kind.Name, user); err != nil {
			return about(userText(user), err)
		}
		page.Items, page.Total, err = Tokens.List(r, q)
		page.Revision = r.Revision()
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	return page, nil
}

// countTokens fills in how many API tokens of a user work.
func countTokens(r store.Reader, now time.Time, u *User) error {
	tokens, _, err := Tokens.List(r, store.Query{Prefix: u.Name + "/"})
	if err != nil {
		return err
	}
	u.Status.ActiveTokens = 0
	for _, t := range tokens {
		if now.Before(t.Spec.ExpiresAt) && t.Spec.UserUID == u.UID {
			u.Status.ActiveTokens++
		}
	}
	return nil
}
