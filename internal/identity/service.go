package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/crypto/bcrypt"

	"freehold.dev/freehold/internal/kernel/store"
)

// Defaults of Config.
const (
	DefaultSessionTTL = 12 * time.Hour
	DefaultBcryptCost = 12
)

const (
	// maxPassword is where bcrypt would start to ignore bytes.
	maxPassword = 72
	// maxBcryptCost of imported hashes: one more doubles the seconds that a login takes.
	maxBcryptCost = 15
)

// Config of a Service. Store and Logger are needed.
type Config struct {
	Store  store.Store
	Logger *slog.Logger
	// SigningKey of credentials, 256 bits. Without one they end with the process.
	SigningKey []byte
	// SessionTTL is how long a login is good for.
	SessionTTL time.Duration
	// BcryptCost of new password hashes.
	BcryptCost int
	// Limits of failed logins; the zero value is right for production.
	Limits Limits
	// Now is the clock.
	Now func() time.Time
}

// Service manages users, sessions and API tokens, and verifies credentials. It is safe for concurrent use.
type Service struct {
	config Config
	signer *signer
	live   *live
	limits *limiter
	// hashing bounds how many passwords are hashed at once.
	hashing chan struct{}
	// decoy is compared with when there is no such user, so that it takes as long.
	decoy []byte
	used  chan usage
}

// New answers a service on the users of a store.
func New(config Config) (*Service, error) {
	if config.SessionTTL == 0 {
		config.SessionTTL = DefaultSessionTTL
	}
	if config.BcryptCost == 0 {
		config.BcryptCost = DefaultBcryptCost
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	key := config.SigningKey
	if len(key) == 0 {
		key = make([]byte, 32)
		_, _ = rand.Read(key)
	}
	decoy, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), config.BcryptCost)
	if err != nil {
		return nil, fmt.Errorf("prepare password checks: %w", err)
	}
	return &Service{
		config: config, signer: newSigner(key, config.Now), live: newLive(), limits: newLimiter(config.Limits, config.Now),
		hashing: make(chan struct{}, runtime.GOMAXPROCS(0)), decoy: decoy, used: make(chan usage, 256),
	}, nil
}

// Bootstrap makes the first administrator, "admin", unless there are users already. Without a password it makes
// one up, and answers it: to be shown once.
func (s *Service) Bootstrap(ctx context.Context, password string) (generated string, err error) {
	if password == "" {
		generated = rand.Text()
		password = generated
	}
	none := false
	err = s.config.Store.View(ctx, func(r store.Reader) error {
		none, err = noUsers(r)
		return err
	})
	if err != nil || !none {
		return "", err
	}
	in := UserInput{Name: "admin", Role: RoleAdmin, Password: password}
	if err := invalid(in.faults()); err != nil {
		return "", fmt.Errorf("make the first administrator: %w", err)
	}
	hash, err := s.hash(ctx, in)
	if err != nil {
		return "", fmt.Errorf("make the first administrator: %w", err)
	}
	err = s.config.Store.Update(ctx, func(tx store.Tx) error {
		if none, err = noUsers(tx); err != nil || !none {
			return err
		}
		return Users.Create(tx, &User{Metadata: store.Metadata{Name: in.Name}, Spec: UserSpec{Role: in.Role, PasswordHash: hash}})
	})
	if err != nil {
		return "", fmt.Errorf("make the first administrator: %w", err)
	}
	if !none {
		return "", nil
	}
	s.config.Logger.Info("made the first administrator", slog.String("user", in.Name))
	return generated, nil
}

func noUsers(r store.Reader) (bool, error) {
	l, err := r.List(store.Query{Kind: Users.Kind.Name, Limit: 1})
	return err == nil && l.Total == 0, err
}

// hash makes the stored hash of a user's password, or takes the one that is imported; "" when neither is given.
func (s *Service) hash(ctx context.Context, in UserInput) (string, error) {
	switch {
	case in.PasswordHash != "":
		return in.PasswordHash, nil
	case in.Password == "":
		return "", nil
	}
	release, err := s.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	b, err := bcrypt.GenerateFromPassword([]byte(in.Password), s.config.BcryptCost)
	if err != nil {
		return "", fmt.Errorf("hash the password: %w", err)
	}
	return string(b), nil
}

// acquire waits for a turn at hashing.
func (s *Service) acquire(ctx context.Context) (release func(), err error) {
	select {
	case s.hashing <- struct{}{}:
		return func() { <-s.hashing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run keeps what is remembered of live credentials true to the store, records the use of API tokens, and removes
// expired sessions, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.follow(ctx)
	}()
	defer func() { <-done }()
	sweep := time.NewTicker(10 * time.Minute)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-s.used:
			if err := s.recordUse(ctx, u); err != nil && ctx.Err() == nil {
				s.config.Logger.Warn("could not record the use of an API token", slog.String("token", u.token), slog.Any("error", err))
			}
		case <-sweep.C:
			if n, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
				s.config.Logger.Warn("could not remove expired sessions", slog.Any("error", err))
			} else if n > 0 {
				s.config.Logger.Debug("removed expired sessions", slog.Int("count", n))
			}
		}
	}
}

// follow forgets credentials whose records were changed by whomever.
func (s *Service) follow(ctx context.Context) {
	const pause = time.Second
	for ctx.Err() == nil {
		err := s.followOnce(ctx)
		s.live.forgetAll()
		if ctx.Err() != nil {
			return
		}
		s.config.Logger.Warn("the watch on users and tokens ended; starting it again", slog.Any("error", err))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *Service) followOnce(ctx context.Context) error {
	w, err := s.config.Store.Watch(ctx, 0, store.Query{Kind: Users.Kind.Name}, store.Query{Kind: Tokens.Kind.Name}, store.Query{Kind: Sessions.Kind.Name})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if batch.Initial {
			s.live.forgetAll()
			continue
		}
		for _, e := range batch.Events {
			s.forget(e)
		}
	}
}

func (s *Service) forget(e store.Event) {
	switch {
	case e.Type == store.Added:
	case e.Object.Kind == Users.Kind.Name:
		s.live.forgetUser(e.Object.Name)
	case e.Object.Kind == Tokens.Kind.Name && e.Type == store.Modified && e.Object.Generation == 1:
		// Only its last use was recorded.
	default:
		s.live.forgetToken(e.Object.Kind, e.Object.Name)
	}
}

// Sweep removes expired sessions and answers how many.
func (s *Service) Sweep(ctx context.Context) (removed int, err error) {
	const page = 500
	now := s.config.Now()
	var expired []string
	err = s.config.Store.View(ctx, func(r store.Reader) error {
		sessions, _, err := Sessions.List(r, store.Query{})
		for _, sn := range sessions {
			if !now.Before(sn.Spec.ExpiresAt) {
				expired = append(expired, sn.Name)
			}
		}
		return err
	})
	for len(expired) > 0 && err == nil {
		n := min(page, len(expired))
		err = s.config.Store.Update(ctx, func(tx store.Tx) error { return deleteAll(tx, Sessions.Kind.Name, expired[:n]) })
		if err == nil {
			expired, removed = expired[n:], removed+n
		}
	}
	return removed, err
}

// deleteAll deletes objects by name; those that are gone already are no error.
func deleteAll(tx store.Tx, kind string, names []string) error {
	for _, name := range names {
		if _, err := tx.Delete(kind, name, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}
