package machineapi

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

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

// recording is TLS that notes why a connection could not be made.
//
// In TLS 1.3 a client's handshake is over before the server has judged its certificate. A client that writes at once may
// find the connection reset, and the alert that tells why gone with it. So nothing is written here until the machine has
// said something: it greets with its HTTP/2 settings as soon as it has let the client in, or refuses with an alert.
type recording struct {
	credentials.TransportCredentials
	last *lastFault
}

func recordingCredentials(c *tls.Config, last *lastFault) credentials.TransportCredentials {
	return &recording{credentials.NewTLS(c), last}
}

func (r *recording) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, conn)
	var greeted net.Conn
	if err == nil {
		if greeted, err = greeting(ctx, secure); err != nil {
			_ = secure.Close()
		}
	}
	r.last.set(err)
	if err != nil {
		return nil, nil, err
	}
	return greeted, info, nil
}

func (r *recording) Clone() credentials.TransportCredentials {
	return &recording{r.TransportCredentials.Clone(), r.last}
}

// greeting waits for the first byte that the other side sends, and answers a connection that still has it to read.
func greeting(ctx context.Context, conn net.Conn) (net.Conn, error) {
	given := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err := io.ReadFull(conn, first)
	if !given() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &greetedConn{conn, first}, nil
}

// greetedConn is a connection of which something was read already.
type greetedConn struct {
	net.Conn
	read []byte
}

func (c *greetedConn) Read(b []byte) (int, error) {
	if len(c.read) > 0 {
		n := copy(b, c.read)
		c.read = c.read[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
