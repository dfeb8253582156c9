package talosim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// member of an etcd cluster.
type member struct {
	ID        uint64 `json:"id"`
	Name      string `json:"name"`
	PeerURL   string `json:"peerURL"`
	ClientURL string `json:"clientURL"`
	Learner   bool   `json:"learner,omitempty"`
}

// Errors of etcd, in its words.
var (
	errNotEnoughStarted = errors.New("etcdserver: re-configuration failed due to not enough started members")
	errTooManyLearners  = errors.New("etcdserver: too many learner members in cluster")
	errMemberNotFound   = errors.New("etcdserver: member not found")
	errNoQuorum         = errors.New("context deadline exceeded")
	errDataNotEmpty     = errors.New("etcd data directory is not empty")
	errNotBootstrapped  = errors.New("etcd is not bootstrapped")
)

// quorate tells whether a majority of the voting members runs.
func (c *cluster) quorate(views []view) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quorateLocked(views)
}

func (c *cluster) quorateLocked(views []view) bool {
	voters, alive := 0, 0
	for _, m := range c.members {
		if m.Learner {
			continue
		}
		voters++
		if runs(views, m.ID) {
			alive++
		}
	}
	return voters > 0 && alive*2 > voters
}

func runs(views []view, id uint64) bool {
	return slices.ContainsFunc(views, func(v view) bool { return v.online && v.etcd == id })
}

// leader is the running voter with the lowest id; 0 without quorum.
func (c *cluster) leader(views []view) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.quorateLocked(views) {
		return 0
	}
	var id uint64
	for _, m := range c.members {
		if !m.Learner && runs(views, m.ID) && (id == 0 || m.ID < id) {
			id = m.ID
		}
	}
	return id
}

func (c *cluster) memberList() []member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.members)
}

func (c *cluster) member(id uint64) (member, bool) {
	for _, m := range c.memberList() {
		if m.ID == id {
			return m, true
		}
	}
	return member{}, false
}

func newMember(v view, learner bool) member {
	return member{
		ID:        rand.Uint64() | 1<<63,
		Name:      v.hostname,
		PeerURL:   fmt.Sprintf("https://%s:2380", v.addr),
		ClientURL: fmt.Sprintf("https://%s:2379", v.addr),
		Learner:   learner,
	}
}

// bootstrap makes the first member.
func (c *cluster) bootstrap(v view) (uint64, error) {
	c.mu.Lock()
	if len(c.members) > 0 {
		c.mu.Unlock()
		return 0, errDataNotEmpty
	}
	m := newMember(v, false)
	c.members = []member{m}
	c.mu.Unlock()
	c.kube.Reset()
	return m.ID, nil
}

// joinable tells whether a new member could be added now.
func (c *cluster) joinable() bool {
	views := c.views()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quorateLocked(views) && !c.learning()
}

func (c *cluster) learning() bool {
	return slices.ContainsFunc(c.members, func(m member) bool { return m.Learner })
}

// join adds a learner. A member of the same name is replaced: the machine's data directory is empty, so that member
// is gone for good.
func (c *cluster) join(v view) (uint64, error) {
	views := c.views()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) == 0 {
		return 0, errNotBootstrapped
	}
	if !c.quorateLocked(views) {
		return 0, errNoQuorum
	}
	kept := slices.DeleteFunc(slices.Clone(c.members), func(m member) bool { return m.Name == v.hostname })
	if slices.ContainsFunc(kept, func(m member) bool { return m.Learner }) {
		return 0, errTooManyLearners
	}
	m := newMember(v, true)
	c.members = append(kept, m)
	return m.ID, nil
}

// promote makes a learner a voter.
func (c *cluster) promote(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.members {
		if c.members[i].ID == id {
			c.members[i].Learner = false
		}
	}
}

// remove takes a member out, if the others keep quorum without it.
func (c *cluster) remove(id uint64) error {
	views := c.views()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.members, func(m member) bool { return m.ID == id })
	if i < 0 {
		return errMemberNotFound
	}
	if !c.quorateLocked(views) {
		return errNoQuorum
	}
	rest := slices.Delete(slices.Clone(c.members), i, i+1)
	if !c.members[i].Learner {
		voters, alive := 0, 0
		for _, m := range rest {
			if m.Learner {
				continue
			}
			voters++
			if runs(views, m.ID) {
				alive++
			}
		}
		if alive < voters/2+1 {
			return errNotEnoughStarted
		}
	}
	c.members = rest
	return nil
}

// forget drops the cluster's data when no disk holds a member's any more.
func (c *cluster) forget() {
	held := map[uint64]bool{}
	for _, m := range c.sim.Machines() {
		held[m.etcdData()] = true
	}
	c.mu.Lock()
	gone := len(c.members) > 0
	for _, m := range c.members {
		gone = gone && !held[m.ID]
	}
	if gone {
		c.members = nil
	}
	c.mu.Unlock()
	if gone {
		c.kube.Reset()
	}
	c.save()
	c.notify.broadcast()
}

// etcdService runs the machine's etcd: it waits for bootstrap or for a cluster to join, runs the member, and keeps
// its health.
func (s *session) etcdService() {
	c := s.cluster
	s.setService("etcd", statePreparing, "Running pre state")
	nagged := false
	for {
		changed := c.notify.wait()
		if s.isStopping() {
			return
		}
		id := s.m.etcdData()
		if _, corrupt := s.m.fault(CorruptEtcd); corrupt {
			s.stopEtcd(stateFailed, "Failed to run: etcdserver: walpb: crc mismatch")
		} else if s.hasLeftEtcd() {
			s.stopEtcd(stateFinished, "Service finished successfully")
		} else if id == 0 {
			if c.joinable() {
				if !sleep(s.ctx, s.m.sim.timing.Etcd) {
					return
				}
				s.joinEtcd()
				continue
			}
			if !nagged {
				nagged = true
				s.logf("etcd", "etcd is waiting to join the cluster, if this node is the first node in the cluster, please run `talosctl bootstrap` against one of the following IPs: [%s]", s.m.addr)
			}
		} else if m, ok := c.member(id); !ok {
			s.stopEtcd(stateFailed, "Failed to run: the member has been permanently removed from the cluster")
		} else if !s.runEtcd(m) {
			return
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *session) joinEtcd() {
	s.etcdMu.Lock()
	defer s.etcdMu.Unlock()
	if s.isStopping() || s.hasLeftEtcd() {
		return
	}
	v, ok := s.m.view()
	if !ok {
		return
	}
	id, err := s.cluster.join(v)
	if err != nil {
		s.logf("etcd", "error adding member: %s", err)
		return
	}
	s.m.setEtcdData(id)
	s.cluster.save()
	s.cluster.notify.broadcast()
}

func (s *session) runEtcd(m member) bool {
	s.m.mu.Lock()
	running := s.etcd == m.ID
	if !s.stopping {
		s.etcd = m.ID
	}
	s.m.mu.Unlock()
	if !running {
		s.setService("etcd", stateRunning, "Started task etcd (PID 2210) for container etcd")
		s.cluster.notify.broadcast()
		s.putEtcdMember(m.ID)
	}
	if m.Learner {
		if !sleep(s.ctx, s.m.sim.timing.Etcd) || s.isStopping() {
			return false
		}
		s.cluster.promote(m.ID)
		s.cluster.save()
		s.cluster.notify.broadcast()
		return true
	}
	if s.cluster.quorate(s.cluster.views()) {
		s.setHealth("etcd", true, "Health check successful")
		s.startAPIServer()
	} else {
		s.setHealth("etcd", false, "context deadline exceeded")
	}
	return true
}

func (s *session) stopEtcd(state, msg string) {
	s.m.mu.Lock()
	was := s.etcd
	s.etcd = 0
	s.m.mu.Unlock()
	s.setService("etcd", state, msg)
	if was != 0 {
		s.cluster.notify.broadcast()
	}
}

// leaveEtcd takes this machine's member out of the cluster and empties its data directory.
func (s *session) leaveEtcd() error {
	s.etcdMu.Lock()
	defer s.etcdMu.Unlock()
	id := s.m.etcdData()
	if id == 0 {
		return nil
	}
	if err := s.cluster.remove(id); err != nil && !errors.Is(err, errMemberNotFound) {
		return fmt.Errorf("failed to remove member %d: %w", id, err)
	}
	// A member that left stays out until the machine boots again or the service is restarted.
	s.m.mu.Lock()
	s.etcdLeft = true
	s.m.mu.Unlock()
	s.stopEtcd(stateFinished, "Service finished successfully")
	s.m.setEtcdData(0)
	s.cluster.save()
	s.cluster.notify.broadcast()
	return nil
}

func (s *session) isStopping() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.stopping || s.ended
}

func (s *session) hasLeftEtcd() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.etcdLeft
}
