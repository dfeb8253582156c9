package apply

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/store"
)

// Service starts runs, finds them again, and knows what came of them.
type Service struct {
	Config
	template string
	url      string
	server   *http.Server

	// running is everything that the service waits for when it closes.
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc

	readers sync.Map // SHA-256 of a password → UID of the tenant that it may read
	secrets sync.Map // UID → *talos.Secrets
	pulls   singleflight.Group

	mu      sync.Mutex
	closed  bool
	alive   map[string]bool // UIDs whose run is watched
	waiting []string        // tenants that found no room, oldest first
}

// New answers a service that listens on loopback for its runs' states and watches the runs that are alive from
// before. Close it when nothing uses it any more.
func New(ctx context.Context, c Config) (*Service, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Folder, 0o700); err != nil {
		return nil, err
	}
	template, err := tofu.Prepare(ctx, c.Folder, c.Tofu)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the states of runs: %w", err)
	}
	s := &Service{Config: c, template: template, url: "http://" + l.Addr().String(), alive: map[string]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.server = &http.Server{Handler: s.StateHandler(), ReadHeaderTimeout: 10 * time.Second}
	s.running.Go(func() { _ = s.server.Serve(l) })
	err = tofu.PublishBackend(c.Folder, s.url)
	if err == nil {
		err = s.adopt(ctx)
	}
	if err != nil {
		s.cancel()
		_ = s.server.Close()
		s.running.Wait()
		return nil, err
	}
	return s, nil
}

// Close asks the living runs to stop, takes what they save, and returns when nothing of the service is left. When
// ctx ends first, what is still alive goes on by itself and is found again by the next service.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for uid, id := range s.livingRuns(ctx) {
		errs = append(errs, s.folder(uid).Interrupt(id))
	}
	for len(s.living()) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.cancel()
	errs = append(errs, s.server.Close())
	s.running.Wait()
	return errors.Join(errs...)
}

func (s *Service) living() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var uids []string
	for uid := range s.alive {
		uids = append(uids, uid)
	}
	return uids
}

func (s *Service) livingRuns(ctx context.Context) map[string]string {
	runs := map[string]string{}
	_ = s.Store.View(ctx, func(r store.Reader) error {
		for _, uid := range s.living() {
			if rec, err := ReadRecord(r, uid); err == nil && rec.Run != nil {
				runs[uid] = rec.Run.ID
			}
		}
		return nil
	})
	return runs
}

func (s *Service) folder(uid string) tofu.Folder { return tofu.Folder(filepath.Join(s.Folder, uid)) }

// adopt watches every run that is alive, and removes folders of tenants that are gone. Runs that ended while nobody
// watched are settled when their tenants are looked at.
func (s *Service) adopt(ctx context.Context) error {
	known := map[string]bool{}
	var runs []*Record
	err := s.Store.View(ctx, func(r store.Reader) error {
		infos, err := r.Blobs(tenants)
		if err != nil {
			return err
		}
		for _, info := range infos {
			uid, name, _ := strings.Cut(strings.TrimPrefix(info.Name, tenants), "/")
			if known[uid] = true; name != "record" {
				continue
			}
			rec, err := ReadRecord(r, uid)
			if err != nil {
				return err
			}
			if rec.Run != nil {
				runs = append(runs, rec)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, rec := range runs {
		busy, err := s.folder(rec.UID).Busy()
		if err != nil {
			return err
		}
		if !busy {
			continue
		}
		s.Logger.InfoContext(ctx, "found a run from before", "tenant", rec.Tenant, "run", rec.Run.ID)
		s.watch(rec.UID, rec.Tenant, *rec.Run)
	}
	return s.sweep(known)
}

// sweep removes the folders of tenants that nothing is recorded of. One that holds a state which was not delivered
// stays. ErrDatabaseLost if nothing is recorded of any tenant, and there are folders: a tenant's folder is made after
// its record and goes before it.
func (s *Service) sweep(known map[string]bool) error {
	entries, err := os.ReadDir(s.Folder)
	if err != nil {
		return err
	}
	var strange []string
	for _, e := range entries {
		if e.IsDir() && !known[e.Name()] && !strings.HasPrefix(e.Name(), "template-") {
			strange = append(strange, e.Name())
		}
	}
	if len(known) == 0 && len(strange) > 0 {
		return fmt.Errorf("%w: %s has the working folders of %d tenants, and the database knows of none: restore the database from a backup, or move that folder away to start anew",
			ErrDatabaseLost, s.Folder, len(strange))
	}
	for _, uid := range strange {
		if left, err := s.folder(uid).Leftovers(); err != nil || len(left) > 0 {
			s.Logger.Warn("the folder of a tenant that the database does not know holds a state that was not delivered; it is left alone", "folder", string(s.folder(uid)), "error", err)
			continue
		}
		if err := s.folder(uid).RemoveAll(); err != nil && !errors.Is(err, tofu.ErrBusy) {
			return err
		}
	}
	return nil
}

// enter takes a place among the runs, or puts the tenant in the queue for one.
func (s *Service) enter(uid, tenant string, force bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errors.New("the service is closing")
	case s.alive[uid]:
		return ErrRunning
	case !force && len(s.alive) >= s.MaxParallel:
		if !slices.Contains(s.waiting, tenant) {
			s.waiting = append(s.waiting, tenant)
		}
		return ErrSaturated
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(t string) bool { return t == tenant })
	s.alive[uid] = true
	return nil
}

// leave gives the place back and wakes the tenants that waited longest, as many as there are places: one that needs
// its place no more must not leave the others waiting.
func (s *Service) leave(uid string) {
	s.mu.Lock()
	delete(s.alive, uid)
	n := min(len(s.waiting), max(0, s.MaxParallel-len(s.alive)))
	next := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	s.mu.Unlock()
	for _, tenant := range next {
		s.Wake(tenant)
	}
}

// Crowded tells whether tenants wait for a place among the runs.
func (s *Service) Crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0
}

// Watched tells whether a run of the tenant is being followed.
func (s *Service) Watched(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive[uid]
}
