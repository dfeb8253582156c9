package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	auditapi "freehold.dev/freehold/internal/audit/api"
	"freehold.dev/freehold/internal/cloud"
	cloudapi "freehold.dev/freehold/internal/cloud/api"
	"freehold.dev/freehold/internal/cloud/apply"
	applyapi "freehold.dev/freehold/internal/cloud/apply/api"
	"freehold.dev/freehold/internal/cloud/controller"
	"freehold.dev/freehold/internal/cloud/provider"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/identity"
	identityapi "freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/reconcile"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
	"freehold.dev/freehold/internal/system"
)

// shutdownGrace is how long a stopping plane waits for its runs of OpenTofu.
const shutdownGrace = 20 * time.Second

// gcPercent trades some processor for memory: a server is often the smallest machine of an installation. The environment's
// GOGC comes first.
const gcPercent = 50

// plane is the management plane, joined from its parts.
type plane struct {
	settings settings
	logger   *slog.Logger
	url      string

	store       store.Store
	identity    *identity.Service
	apply       *apply.Service
	controllers *reconcile.Manager
	hub         *hubParts
	prober      *controller.Prober
	handler     http.Handler

	generatedPassword string
}

// runPlane builds the plane, calls ready when it serves, and runs it until ctx ends; so may ready. It stops in the order of its
// layers: requests and controllers, runs of OpenTofu, the store.
func runPlane(ctx context.Context, s settings, ready func(context.Context, *plane) error) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	p := &plane{settings: s}
	if p.logger, err = s.logger(); err != nil {
		return err
	}
	tlsConfig, err := s.tls()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	p.store, err = sqlite.Open(ctx, s.database(), sqlite.Options{
		Kinds:  slices.Concat(identity.Kinds(), cloud.Kinds(), hub.Kinds()),
		Logger: p.logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.store.Close()) }()
	if err := p.build(ctx); err != nil {
		return err
	}
	defer p.prober.Close()
	defer func() {
		// Runs of OpenTofu are asked to stop and given time to save their states; one that needs longer goes on by
		// itself, and the next plane finds it.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		err = errors.Join(err, p.apply.Close(grace))
	}()

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("listen on %s: another program does already: stop that one, or choose another address with --listen or FREEHOLD_LISTEN", s.Listen)
		}
		return fmt.Errorf("listen: %w", err)
	}
	p.url = urlOf(listener.Addr(), tlsConfig != nil)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return rest.Serve(ctx, listener, p.handler, rest.Serving{Logger: p.logger, TLS: tlsConfig})
	})
	group.Go(func() error { return p.identity.Run(ctx) })
	group.Go(func() error { return p.controllers.Run(ctx) })
	p.hub.run(ctx, group)
	group.Go(func() error { return ready(ctx, p) })
	return group.Wait()
}

// build joins the parts. Nothing runs yet.
func (p *plane) build(ctx context.Context) error {
	binary, err := tofu.Find(ctx, p.settings.Tofu)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's own file: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	modules := provider.Default()
	p.controllers = reconcile.New(p.store, p.logger, registry)

	root, err := secrets.Open(ctx, p.store, p.settings.rootKey())
	if err != nil {
		return err
	}
	p.apply, err = apply.New(ctx, apply.Config{
		Store: p.store, Folder: p.settings.runs(), Root: root,
		Tofu: binary, Self: []string{self, "tofu-run"}, Logger: p.logger,
		Deadline: p.settings.ApplyDeadline, MaxParallel: p.settings.ApplyParallel,
		Wake: func(tenant string) { p.controllers.Wake(controller.TenantName, tenant) },
	})
	if err != nil {
		return err
	}
	p.identity, err = identity.New(identity.Config{Store: p.store, Logger: p.logger, SigningKey: root.Key("freehold identity signing key")})
	if err != nil {
		return err
	}
	if p.generatedPassword, err = p.identity.Bootstrap(ctx, p.settings.AdminPassword); err != nil {
		return fmt.Errorf("make the first administrator: %w", err)
	}
	if err := cloudapi.PublishProviders(ctx, p.store, modules.Objects()); err != nil {
		return err
	}

	credentials := controller.NewCredentials(p.apply)
	p.prober = controller.NewProber(controller.ProberConfig{
		Store: p.store, Credentials: credentials, Logger: p.logger, UnreachableAfter: p.settings.UnreachableFor,
		Wake: func(machine string) { p.controllers.Wake(controller.ProberName, machine) },
	})
	status := controller.NewStatus(controller.StatusConfig{
		Store: p.store, Credentials: credentials, Logger: p.logger, UnreachableAfter: p.settings.UnreachableFor,
	})
	tenant := controller.NewTenant(controller.TenantConfig{
		Store: p.store, Applier: p.apply, Modules: modules, Logger: p.logger, Debounce: p.settings.ApplyDebounce,
	})
	for _, c := range []reconcile.Controller{tenant.Controller(), p.prober.Controller(), status.Controller()} {
		if err := p.controllers.Add(c); err != nil {
			return err
		}
	}
	if err := p.buildHub(root, registry); err != nil {
		return err
	}
	return p.buildAPI(registry, binary, modules)
}

func (p *plane) buildAPI(registry *prometheus.Registry, binary tofu.Binary, modules *provider.Registry) error {
	metrics, err := rest.NewMetrics(registry)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	users := identityapi.New(p.identity)
	config := rest.Config{
		Title: "Freehold", Version: version, Prefixes: []string{"/"}, Logger: p.logger, Metrics: metrics,
		Authenticate: users.Authenticate, Authorize: identityapi.Authorize, Caller: identityapi.Caller,
		Problem: identityapi.Problem,
	}
	api := rest.New(mux, config)
	users.Register(api)
	cloudapi.Register(api, cloudapi.Config{
		Store: p.store, Rules: cloud.Rules{Talos: cloudapi.TalosRules{}, Providers: modules}, Secrets: p.apply, Logger: p.logger,
		Caller: func(ctx context.Context) cloudapi.Caller {
			c := identity.FromContext(ctx)
			return cloudapi.Caller{User: c.User, Admin: c.Role.Allows(identity.RoleAdmin)}
		},
	})
	applyapi.Register(api, p.apply)
	auditapi.Register(api, p.store)
	system.Register(api, system.Config{Version: version, OpenTofu: binary.Version, Metrics: registry, Checks: []system.Check{
		{Name: "store", Func: p.storeAnswers},
	}})
	// OpenTofu's own protocol, with the credential of a run.
	mux.Handle("/api/v1/tenants/{name}/state", p.apply.StateHandler())
	mux.Handle("/api/v1/tenants/{name}/state/lock", p.apply.StateHandler())
	config.Document = api
	others, err := p.serveHub(mux, config, registry)
	if err != nil {
		return err
	}
	p.handler = api.Handler(others...)
	return nil
}

// storeAnswers checks that the store can be read and written. It leaves nothing behind.
func (p *plane) storeAnswers(ctx context.Context) error {
	return p.store.Update(ctx, func(tx store.Tx) error {
		if err := tx.PutBlob("system/readiness", []byte("written to see whether the store can be")); err != nil {
			return err
		}
		return tx.DeleteBlob("system/readiness")
	})
}

func urlOf(addr net.Addr, secure bool) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
