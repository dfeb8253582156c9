package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Manager runs controllers.
type Manager struct {
	store    Store
	log      *slog.Logger
	registry prometheus.Registerer

	mu      sync.Mutex
	started bool
	byName  map[string]*runner
	runners []*runner
	// early are the keys that were woken before their controller was added, by controller.
	early map[string][]string
}

// New answers a Manager without controllers. A nil registerer exports no metrics.
func New(s Store, log *slog.Logger, registry prometheus.Registerer) *Manager {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Manager{store: s, log: log, registry: registry, byName: map[string]*runner{}, early: map[string][]string{}}
}

// Add adds a controller. It fails when the controller is incomplete, its name is taken, or Run was called.
func (m *Manager) Add(c Controller) error {
	if err := c.complete(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return fmt.Errorf("controller %q comes too late: the manager is running", c.Name)
	}
	if _, ok := m.byName[c.Name]; ok {
		return fmt.Errorf("a controller named %q exists already", c.Name)
	}
	r := newRunner(c, m.store, m.log)
	if err := r.metrics.register(m.registry); err != nil {
		r.close()
		return fmt.Errorf("register the metrics of controller %q: %w", c.Name, err)
	}
	m.byName[c.Name] = r
	m.runners = append(m.runners, r)
	for _, key := range m.early[c.Name] {
		r.debounce.now(key)
	}
	delete(m.early, c.Name)
	return nil
}

// Wake queues a key of a controller at once, also before Run and while a run of the key is going on (then it runs
// once more). Before Run the controller may be yet to be added. A controller that never is, is logged; a Manager that
// has stopped ignores it.
func (m *Manager) Wake(controller, key string) {
	m.mu.Lock()
	r, ok := m.byName[controller]
	early := !ok && !m.started
	if early && !slices.Contains(m.early[controller], key) {
		m.early[controller] = append(m.early[controller], key)
	}
	m.mu.Unlock()
	switch {
	case ok:
		r.debounce.now(key)
	case !early:
		m.nobody(controller, key)
	}
}

func (m *Manager) nobody(controller string, keys ...string) {
	m.log.Error("no controller has this name; nothing was woken", "controller", controller, "keys", keys)
}

// Run runs all controllers until ctx ends, and answers when all workers and watches have stopped: nil if that was
// because of ctx, the store's error if the store was closed. It can be called once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		return errors.New("the manager was already run")
	}
	m.started = true
	runners, early := m.runners, m.early
	m.early = nil
	m.mu.Unlock()
	for name, keys := range early {
		m.nobody(name, keys...)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		once  sync.Once
		cause error
	)
	for _, r := range runners {
		r.start(ctx, &wg, func(err error) {
			once.Do(func() { cause = fmt.Errorf("controller %s: %w", r.Name, err) })
			cancel(err)
		})
	}
	<-ctx.Done()
	for _, r := range runners {
		r.close()
	}
	wg.Wait()
	for _, r := range runners {
		r.metrics.unregister(m.registry)
	}
	return cause
}
