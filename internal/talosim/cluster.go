package talosim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

// clusterRecord is what a cluster's etcd holds: its membership, and the objects of Kubernetes.
type clusterRecord struct {
	ID      string          `json:"id"`
	Members []member        `json:"members,omitempty"`
	Objects json.RawMessage `json:"objects,omitempty"`
}

// cluster is what machines with the same OS certificate authority share. It stands for the data that their etcd
// members replicate, so it lives as long as one of the members' disks does.
type cluster struct {
	sim  *Sim
	id   string
	kube *kubeapi.Store
	// notify wakes whoever waits for anything in the cluster: membership, a machine's state, a node.
	notify notifier

	mu      sync.Mutex
	members []member
	pending map[string]time.Time
	saveMu  sync.Mutex
}

// clusterID names the cluster of a config by its OS certificate authority, which control planes and workers share.
func clusterID(ca *x509.PEMEncodedCertificateAndKey) string {
	sum := sha256.Sum256(ca.Crt)
	return hex.EncodeToString(sum[:12])
}

func newCluster(s *Sim, r *clusterRecord) *cluster {
	c := &cluster{sim: s, id: r.ID, members: r.Members, pending: map[string]time.Time{}}
	c.kube = kubeapi.NewStore(r.Objects, func() {
		c.notify.broadcast()
	})
	s.wg.Go(func() { c.run(s.ctx) })
	return c
}

// save writes what the members' disks hold; c.mu must not be held.
func (c *cluster) save() {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	c.mu.Lock()
	r := &clusterRecord{ID: c.id, Members: append([]member(nil), c.members...)}
	c.mu.Unlock()
	var err error
	if len(r.Members) == 0 {
		err = c.sim.disks.removeCluster(c.id)
	} else {
		r.Objects = c.kube.Snapshot()
		err = c.sim.disks.saveCluster(r)
	}
	if err != nil {
		c.sim.log.Error("cannot save the simulated cluster", "cluster", c.id, "error", err)
	}
}

// views lists what the cluster's machines show of themselves.
func (c *cluster) views() []view {
	var list []view
	for _, m := range c.sim.Machines() {
		if v, ok := m.view(); ok && v.cluster == c {
			list = append(list, v)
		}
	}
	return list
}

// run is the cluster's node lifecycle: it makes Nodes of machines whose kubelet runs, and keeps their conditions.
func (c *cluster) run(ctx context.Context) {
	defer c.save()
	var saved uint64
	for {
		changed := c.notify.wait()
		next := c.reconcileNodes(time.Now())
		if rev := c.kube.Revision(); rev != saved {
			saved = rev
			c.save()
		}
		if !waitUntil(ctx, changed, next) || !sleep(ctx, c.sim.timing.settle()) {
			return
		}
	}
}

// waitUntil waits for a change or a time (zero: none), and tells whether the context lives.
func waitUntil(ctx context.Context, changed <-chan struct{}, at time.Time) bool {
	var due <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-due:
	}
	return true
}

// serving tells whether the Kubernetes API can read and write: etcd has quorum and an API server runs.
func (c *cluster) serving(views []view) bool {
	if !c.quorate(views) {
		return false
	}
	for _, v := range views {
		if v.online && v.apiserver {
			return true
		}
	}
	return false
}
