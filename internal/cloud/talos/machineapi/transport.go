package machineapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// lastFault keeps the last fault below gRPC, which reports it as text only. A nil fault clears it.
type lastFault struct {
	mu  sync.Mutex
	err error
}

func (l *lastFault) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *lastFault) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// recording is TLS that notes why a handshake failed, and the alert by which the other side ended a connection.
type recording struct {
	credentials.TransportCredentials
	last *lastFault
}

func recordingCredentials(c *tls.Config, last *lastFault) credentials.TransportCredentials {
	return &recording{credentials.NewTLS(c), last}
}

func (r *recording) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, conn)
	r.last.set(err)
	if err != nil {
		return nil, nil, err
	}
	return &recordingConn{secure, r.last}, info, nil
}

func (r *recording) Clone() credentials.TransportCredentials {
	return &recording{r.TransportCredentials.Clone(), r.last}
}

type recordingConn struct {
	net.Conn
	last *lastFault
}

// Read notes a TLS alert: in TLS 1.3 a server refuses a client's certificate after the client's handshake is over.
func (c *recordingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && isAlert(err) {
		c.last.set(err)
	}
	return n, err
}

func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
