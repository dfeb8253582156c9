package rest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serving is how [Serve] serves. The zero value, with a Logger, is right for an API.
type Serving struct {
	Logger *slog.Logger
	// TLS, if any; HTTP/2 is offered.
	TLS *tls.Config
	// Grace is how long requests may go on after ctx ended (default 10 s). Streams end at once.
	Grace time.Duration
}

// Draining is closed when the server that ctx's request came to wants to stop, and waits for the request. It is nil where
// no [Serve] serves.
func Draining(ctx context.Context) <-chan struct{} {
	if drain, ok := ctx.Value(drainKey).(context.Context); ok {
		return drain.Done()
	}
	return nil
}

// Serve serves until ctx ends, then stops: no new connections, streams end, other requests finish or are cut off
// after the grace. It closes the listener, and returns nil after a clean stop.
func Serve(ctx context.Context, l net.Listener, h http.Handler, s Serving) error {
	if s.Grace == 0 {
		s.Grace = 10 * time.Second
	}
	drain, stopStreams := context.WithCancel(context.Background())
	defer stopStreams()
	base := context.WithValue(context.Background(), drainKey, drain)
	server := &http.Server{
		Handler:           h,
		TLSConfig:         s.TLS,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// Streams push this deadline on with each write. There is no ReadTimeout: it would end the context of a
		// long request; bodies have a deadline of their own.
		WriteTimeout:   time.Minute,
		MaxHeaderBytes: 64 << 10,
		BaseContext:    func(net.Listener) context.Context { return base },
	}
	if s.Logger != nil {
		server.ErrorLog = slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug)
	}
	failed := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			failed <- server.ServeTLS(l, "", "")
		} else {
			failed <- server.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stopStreams()
	grace, cancel := context.WithTimeout(context.Background(), s.Grace)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		if s.Logger != nil {
			s.Logger.Warn("requests were cut off at shutdown", slog.Duration("grace", s.Grace))
		}
		err = server.Close()
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("stop serving HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}
