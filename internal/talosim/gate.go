package talosim

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// reach is how a machine's network treats those who call it.
type reach int

const (
	reachOpen   reach = iota
	reachRefuse       // connections are refused, living ones are cut
	reachHang         // connections are made, and nothing comes back, as when packets are dropped
)

// gate is one TCP port of a machine. Its listeners come and go with the services behind it; network faults act here,
// below TLS.
type gate struct {
	addr netip.AddrPort

	mu       sync.Mutex
	reach    reach
	changed  chan struct{}
	conns    map[*gateConn]struct{}
	listener *gateListener
}

func newGate(addr netip.Addr, port uint16) *gate {
	return &gate{addr: netip.AddrPortFrom(addr, port), changed: make(chan struct{}), conns: map[*gateConn]struct{}{}}
}

// listen opens the port. There is one listener at a time; connections outlive it until cut.
func (g *gate) listen() (net.Listener, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &gateListener{gate: g, conns: make(chan net.Conn), done: make(chan struct{})}
	if g.reach != reachRefuse {
		if err := l.open(); err != nil {
			return nil, err
		}
	}
	g.listener = l
	return l, nil
}

// set changes how the port treats its callers.
func (g *gate) set(r reach) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reach == r {
		return nil
	}
	g.reach = r
	close(g.changed)
	g.changed = make(chan struct{})
	if g.listener == nil {
		return nil
	}
	if r == reachRefuse {
		g.listener.shut()
	} else if g.listener.tcp == nil {
		return g.listener.open()
	}
	return nil
}

func (g *gate) state() (reach, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reach, g.changed
}

type gateListener struct {
	gate  *gate
	tcp   *net.TCPListener // guarded by gate.mu; nil while refusing
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *gateListener) open() error {
	tcp, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(l.gate.addr))
	if err != nil {
		return fmt.Errorf("open a port of the simulated machine: %w", err)
	}
	l.tcp = tcp
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			gc := &gateConn{Conn: c, gate: l.gate, closed: make(chan struct{})}
			l.gate.mu.Lock()
			live := l.tcp == tcp
			if live {
				l.gate.conns[gc] = struct{}{}
			}
			l.gate.mu.Unlock()
			if !live {
				c.Close()
				return
			}
			select {
			case l.conns <- gc:
			case <-l.done:
				gc.Close()
				return
			}
		}
	}()
	return nil
}

func (l *gateListener) shut() {
	if l.tcp != nil {
		l.tcp.Close()
		l.tcp = nil
	}
}

// Accept implements net.Listener.
func (l *gateListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *gateListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.gate.mu.Lock()
		defer l.gate.mu.Unlock()
		l.shut()
		if l.gate.listener == l {
			l.gate.listener = nil
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *gateListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.gate.addr) }

// cut closes every connection of the port.
func (g *gate) cut() {
	g.mu.Lock()
	cut := make([]*gateConn, 0, len(g.conns))
	for c := range g.conns {
		cut = append(cut, c)
	}
	g.mu.Unlock()
	for _, c := range cut {
		c.Close()
	}
}

// close closes the port and every connection of it.
func (g *gate) close() {
	g.mu.Lock()
	l := g.listener
	g.mu.Unlock()
	if l != nil {
		l.Close()
	}
	g.cut()
}

// gateConn passes bytes only while the network does.
type gateConn struct {
	net.Conn
	gate   *gate
	once   sync.Once
	closed chan struct{}

	mu          sync.Mutex
	read, write time.Time // deadlines, which hold while the network hangs too
	moved       notifier  // a deadline changed
}

// pass waits until the network lets bytes through.
func (c *gateConn) pass(deadline *time.Time) error {
	for {
		r, changed := c.gate.state()
		if r != reachHang {
			return nil
		}
		moved := c.moved.wait()
		c.mu.Lock()
		at := *deadline
		c.mu.Unlock()
		var due <-chan time.Time
		if !at.IsZero() {
			t := time.NewTimer(time.Until(at))
			defer t.Stop()
			due = t.C
		}
		select {
		case <-changed:
		case <-moved:
		case <-due:
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

func (c *gateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if perr := c.pass(&c.read); perr != nil {
		return 0, perr
	}
	return n, err
}

func (c *gateConn) Write(b []byte) (int, error) {
	if err := c.pass(&c.write); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *gateConn) SetDeadline(t time.Time) error {
	c.deadlines(func() { c.read, c.write = t, t })
	return c.Conn.SetDeadline(t)
}

func (c *gateConn) SetReadDeadline(t time.Time) error {
	c.deadlines(func() { c.read = t })
	return c.Conn.SetReadDeadline(t)
}

func (c *gateConn) SetWriteDeadline(t time.Time) error {
	c.deadlines(func() { c.write = t })
	return c.Conn.SetWriteDeadline(t)
}

func (c *gateConn) deadlines(set func()) {
	c.mu.Lock()
	set()
	c.mu.Unlock()
	c.moved.broadcast()
}

func (c *gateConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.closed)
		c.gate.mu.Lock()
		delete(c.gate.conns, c)
		c.gate.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}
