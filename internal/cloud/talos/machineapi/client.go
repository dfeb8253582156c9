// Package machineapi asks and commands one machine over its Talos API: what it is and how it does, its etcd
// membership, reset and reboot. It decides nothing.
package machineapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosiclient "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	machinepb "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"freehold.dev/freehold/internal/cloud"
)

// Deadlines of one call. A context that ends sooner wins.
const (
	// ConnectTimeout bounds connecting and the TLS handshake.
	ConnectTimeout = 5 * time.Second
	// QueryTimeout bounds a question.
	QueryTimeout = 10 * time.Second
	// CommandTimeout bounds a command, until the machine has accepted it.
	CommandTimeout = 30 * time.Second
	// EtcdLeaveTimeout bounds leaving etcd, which the machine carries out before it answers.
	EtcdLeaveTimeout = 90 * time.Second
)

// Credentials of an administrator of a cluster's machines, as PEM.
type Credentials struct {
	CA, Certificate, Key []byte
}

// Client talks to one machine. It connects when it is first used, and may be used by several goroutines.
type Client struct {
	address string
	secured bool
	conn    *grpc.ClientConn
	last    *lastFault
	machine machinepb.MachineServiceClient
	cosi    state.State
}

// DialMaintenance answers a client for a machine in maintenance mode. The machine's certificate is self-signed and
// cannot be verified, and the client shows none: whoever answers at the address is believed, so nothing secret may
// be sent and nothing that it says proves an identity. A machine that has a configuration refuses it
// (ErrUnauthorized).
func DialMaintenance(address string) (*Client, error) {
	return dial(address, false, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
}

// DialSecured answers a client for a configured machine of the cluster that the credentials belong to. Both sides
// are verified.
func DialSecured(address string, c Credentials) (*Client, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, fmt.Errorf("read the Talos client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA) {
		return nil, fmt.Errorf("the Talos CA holds no certificate")
	}
	return dial(address, true, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
}

func dial(address string, secured bool, t *tls.Config) (*Client, error) {
	a, err := cloud.ParseMachineAddress(address)
	if err != nil {
		return nil, fmt.Errorf("machine address %q: %w", address, err)
	}
	c := &Client{address: a.String(), secured: secured, last: &lastFault{}}
	c.conn, err = grpc.NewClient("passthrough:///"+c.address,
		grpc.WithTransportCredentials(recordingCredentials(t, c.last)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			c.last.set(err)
			return conn, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 500 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: ConnectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize)),
		grpc.WithSharedWriteBuffer(true),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("machine address %q: %w", address, err)
	}
	c.machine = machinepb.NewMachineServiceClient(c.conn)
	c.cosi = state.WrapCore(cosiclient.NewAdapter(cosiv1alpha1.NewStateClient(c.conn), cosiclient.WithDisableWatchRetry()))
	return c, nil
}

// Address is the canonical "host:port".
func (c *Client) Address() string { return c.address }

// Secured tells whether both sides are verified (DialSecured).
func (c *Client) Secured() bool { return c.secured }

// Close ends all calls and the connection. Closing again does nothing.
func (c *Client) Close() {
	// The only error is that it is closed already.
	_ = c.conn.Close()
}
