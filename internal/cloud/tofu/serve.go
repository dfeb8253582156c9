package tofu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
)

// Providers are the providers that the supervisor serves itself, by full source address
// ("registry.opentofu.org/siderolabs/talos").
type Providers map[string]func() provider.Provider

// goodbye bounds how long servers may take to end, and to take their sockets away, once they were stopped.
const goodbye = time.Second

// served are provider servers of one run. tofu reaches them by reattaching.
type served struct {
	reattach string
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// wait waits for the servers to end.
func (s *served) wait() {
	ended := make(chan struct{})
	go func() {
		s.done.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(goodbye):
	}
}

type reattachConfig struct {
	Protocol        string
	ProtocolVersion int
	Pid             int
	Test            bool
	Addr            reattachAddr
}

type reattachAddr struct{ Network, String string }

// serve starts a server for each provider, for this run alone: a provider server holds one configuration, and
// stopping one run must not stop another.
func serve(ctx context.Context, providers Providers) (*served, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &served{}
	s.stop = func() {
		cancel()
		s.wait()
	}
	configs := map[string]reattachConfig{}
	for source, factory := range providers {
		ready, closed := make(chan *plugin.ReattachConfig), make(chan struct{})
		failed := make(chan error, 1)
		s.done.Go(func() {
			failed <- tf6server.Serve(source, providerserver.NewProtocol6(factory()),
				tf6server.WithDebug(ctx, ready, closed),
				tf6server.WithGoPluginLogger(hclog.NewNullLogger()),
				tf6server.WithoutLogStderrOverride(),
			)
		})
		select {
		case c := <-ready:
			configs[source] = reattachConfig{
				Protocol: string(c.Protocol), ProtocolVersion: 6, Pid: os.Getpid(), Test: true,
				Addr: reattachAddr{Network: c.Addr.Network(), String: c.Addr.String()},
			}
		case err := <-failed:
			cancel()
			return nil, fmt.Errorf("serve provider %s: %w", source, err)
		case <-time.After(30 * time.Second):
			cancel()
			return nil, fmt.Errorf("serve provider %s: it did not start", source)
		}
	}
	if len(configs) > 0 {
		raw, err := json.Marshal(configs)
		if err != nil {
			cancel()
			return nil, err
		}
		s.reattach = string(raw)
	}
	return s, nil
}
