package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// Status is what an agent knows of itself and its streams.
type Status struct {
	Running bool   `json:"running"`
	PID     int    `json:"pid,omitempty"`
	Version string `json:"version,omitempty"`
	NodeID  string `json:"node_id"`
	// Boot counts the agent's starts.
	Boot      int64             `json:"boot"`
	StartedAt *time.Time        `json:"started_at,omitempty"`
	Hub       LinkState         `json:"hub"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Problem is what keeps the agent from working as it should.
	Problem string         `json:"problem,omitempty"`
	Streams []StreamStatus `json:"streams"`
}

func (a *agent) status() Status {
	s := Status{
		Running: true, PID: os.Getpid(), Version: a.config.Version, NodeID: a.identity.NodeID, Boot: a.core.Boot().Seq,
		StartedAt: &a.began, Hub: a.link.State(), Streams: a.core.Streams(), Labels: a.driver.node.current.Load().Labels,
	}
	metrics := a.driver.metrics()
	for i := range s.Streams {
		if m, runs := metrics[s.Streams[i].StreamID]; runs {
			m.Restarts = s.Streams[i].Restarts
			s.Streams[i].Metrics = &m
		}
	}
	if err := a.core.StoreError(); err != nil {
		s.Problem = storeFailure(err).Message
	} else if left := a.core.Leftovers(); len(left) > 0 {
		s.Problem = "processes of an earlier run of the agent have not ended yet; nothing is started before"
	}
	return s
}

// socketPath reaches the socket in a folder whatever the length of the folder's path, through the folder itself.
func socketPath(folder *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(folder.Fd())), socketName)
}

// listen makes the socket that [ReadStatus] asks. What an agent that was killed left there is removed: the store's lock
// tells that there is no other.
func (a *agent) listen(ctx context.Context) (net.Listener, error) {
	folder, err := os.Open(a.config.Data)
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }()
	if err := os.Remove(filepath.Join(a.config.Data, socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", socketPath(folder))
	if err != nil {
		return nil, fmt.Errorf("make the status socket in %s: %w", a.config.Data, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its path ends with the folder's descriptor
	if err := os.Chmod(filepath.Join(a.config.Data, socketName), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// statusLimit bounds the reading and writing of a status.
const statusLimit = 10 * time.Second

func (a *agent) serve(ctx context.Context, l net.Listener) {
	defer func() { _ = os.Remove(filepath.Join(a.config.Data, socketName)) }()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			wait(ctx, time.Second) // no descriptors are left; it passes
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(statusLimit))
		_ = json.NewEncoder(conn).Encode(a.status())
		_ = conn.Close()
	}
}

// ReadStatus answers the status of the agent whose data is in a folder: from the agent when it runs, else from what it
// left.
func ReadStatus(ctx context.Context, data string) (*Status, error) {
	s, err := askStatus(ctx, data)
	if err == nil {
		return s, nil
	}
	if _, missing := os.Stat(filepath.Join(data, "agent.db")); missing != nil {
		return nil, fmt.Errorf("%w (there is nothing in %s)", ErrNotEnrolled, data)
	}
	c := Config{Data: data}
	c.Logger = slog.New(slog.DiscardHandler)
	db, opened := c.openStore(ctx)
	if opened != nil {
		return nil, fmt.Errorf("the agent does not answer (%w), and its data cannot be read: %w", err, opened)
	}
	s, err = storedStatus(ctx, db)
	return s, errors.Join(err, db.Close())
}

func askStatus(ctx context.Context, data string) (*Status, error) {
	folder, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }()
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socketPath(folder))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(statusLimit))
	s := &Status{}
	return s, json.NewDecoder(conn).Decode(s)
}

// storedStatus is what an agent that does not run has left: nothing runs, so no stream is said to.
func storedStatus(ctx context.Context, db store.Store) (*Status, error) {
	id, err := loadIdentity(ctx, db)
	if err != nil {
		return nil, err
	}
	s := &Status{NodeID: id.NodeID, Hub: LinkState{Server: id.Server}, Streams: []StreamStatus{}}
	err = db.View(ctx, func(r store.Reader) error {
		raw, err := r.Blob(bootBlob)
		if err == nil {
			s.Boot, _ = strconv.ParseInt(string(raw), 10, 64)
		}
		all, _, err := records.List(r, store.Query{})
		for _, rec := range all {
			stored := &stream{id: rec.Name, rec: rec.Spec, saved: rec.Spec}
			st := StreamStatus{StreamReport: stored.report(), Target: rec.Spec.Target}
			if st.State == hub.Starting {
				st.State = hub.Stopped
			}
			s.Streams = append(s.Streams, st)
		}
		return err
	})
	return s, err
}
