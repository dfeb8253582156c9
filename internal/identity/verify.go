package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"freehold.dev/freehold/internal/kernel/store"
)

// maxToken is the longest credential, in bytes, that is looked at.
const maxToken = 4096

// Verify answers whose credential the token is. ErrUnauthenticated otherwise.
func (s *Service) Verify(ctx context.Context, token string) (*Principal, error) {
	if token == "" || len(token) > maxToken {
		return nil, fmt.Errorf("%w: no credential was sent", ErrUnauthenticated)
	}
	key := sha256.Sum256([]byte(token))
	p, mark := s.live.get(key)
	if p == nil {
		var err error
		if p, err = s.resolve(ctx, token); err != nil {
			return nil, err
		}
		s.live.put(key, p, mark)
	}
	now := s.config.Now()
	if !now.Before(p.ExpiresAt) {
		return nil, fmt.Errorf("%w: the credential is expired", ErrUnauthenticated)
	}
	if p.Kind == KindToken && s.live.touch(p.TokenID, now) {
		select {
		case s.used <- usage{token: p.TokenID, at: now}:
		default: // so many tokens at once: the next use records it
			s.live.untouch(p.TokenID)
		}
	}
	return p, nil
}

// resolve looks a token up in the store.
func (s *Service) resolve(ctx context.Context, token string) (*Principal, error) {
	c, err := s.signer.verify(token)
	if err != nil {
		return nil, err
	}
	p := &Principal{User: c.Subject, UID: c.UserUID, Kind: c.Kind, TokenID: c.Record}
	err = s.config.Store.View(ctx, func(r store.Reader) error {
		rec, err := credential(r, c.Kind, c.Record)
		if err != nil {
			return err
		}
		user, err := Users.Get(r, c.Subject)
		if err != nil {
			return err
		}
		if !sameHash(rec.hash, hashID(c.ID)) || user.UID != c.UserUID || rec.userUID != user.UID || user.Deleting() {
			return ErrUnauthenticated
		}
		p.Role, p.ExpiresAt = user.Spec.Role, rec.expires
		return nil
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrUnauthenticated) {
		return nil, fmt.Errorf("%w: the credential was revoked", ErrUnauthenticated)
	}
	if err != nil {
		return nil, fmt.Errorf("look up a credential: %w", err)
	}
	return p, nil
}

type record struct {
	hash, userUID string
	expires       time.Time
}

func credential(r store.Reader, kind CredentialKind, name string) (record, error) {
	switch kind {
	case KindSession:
		sn, err := Sessions.Get(r, name)
		if err != nil {
			return record{}, err
		}
		return record{sn.Spec.IDHash, sn.Spec.UserUID, sn.Spec.ExpiresAt}, nil
	case KindToken:
		t, err := Tokens.Get(r, name)
		if err != nil {
			return record{}, err
		}
		return record{t.Spec.IDHash, t.Spec.UserUID, t.Spec.ExpiresAt}, nil
	}
	return record{}, ErrUnauthenticated
}

// live remembers verified credentials. Whoever commits a change to users, tokens or sessions forgets what it
// concerns before answering; what was read before that commit is not remembered after it (mark).
type live struct {
	mu    sync.RWMutex
	known map[[sha256.Size]byte]*Principal
	mark  uint64
	used  map[string]time.Time // API tokens, when their use was recorded last
}

const (
	maxLive = 20_000
	// usedEvery is how often the use of an API token is recorded at most.
	usedEvery = time.Minute
)

func newLive() *live {
	return &live{known: map[[sha256.Size]byte]*Principal{}, used: map[string]time.Time{}}
}

func (l *live) get(key [sha256.Size]byte) (*Principal, uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.known[key], l.mark
}

// put remembers a credential that was read when the mark was taken.
func (l *live) put(key [sha256.Size]byte, p *Principal, mark uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mark != mark {
		return
	}
	if len(l.known) >= maxLive {
		for k := range l.known { // any one: it is looked up again when needed
			delete(l.known, k)
			break
		}
	}
	l.known[key] = p
}

func (l *live) forget(which func(*Principal) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark++
	for k, p := range l.known {
		if which(p) {
			delete(l.known, k)
		}
	}
}

func (l *live) forgetUser(name string) {
	l.forget(func(p *Principal) bool { return p.User == name })
}

func (l *live) forgetToken(kind, name string) {
	l.forget(func(p *Principal) bool {
		return p.TokenID == name && (p.Kind == KindToken) == (kind == Tokens.Kind.Name)
	})
}

func (l *live) forgetAll() {
	l.forget(func(*Principal) bool { return true })
}

// touch tells whether the use of a token is to be recorded now.
func (l *live) touch(token string, now time.Time) bool {
	l.mu.RLock()
	at, ok := l.used[token]
	l.mu.RUnlock()
	if ok && now.Sub(at) < usedEvery {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.used[token]; ok && now.Sub(at) < usedEvery {
		return false
	}
	if len(l.used) >= maxLive {
		clear(l.used)
	}
	l.used[token] = now
	return true
}

func (l *live) untouch(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, token)
}

// usage of an API token.
type usage struct {
	token string
	at    time.Time
}

// recordUse writes a token's last use, unless a recent one is on record (by another replica, or before a restart).
func (s *Service) recordUse(ctx context.Context, u usage) error {
	err := s.config.Store.Update(ctx, func(tx store.Tx) error {
		t, err := Tokens.Get(tx, u.token)
		if err != nil {
			return err
		}
		if t.Status.LastUsed != nil && u.at.Sub(*t.Status.LastUsed) < usedEvery {
			return nil
		}
		at := u.at.UTC().Truncate(time.Second)
		t.Status.LastUsed = &at
		return Tokens.Update(tx, t)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
