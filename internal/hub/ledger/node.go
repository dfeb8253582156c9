package ledger

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

// NewEnrolment makes an enrolment token and its record, good for ttl (0: [hub.EnrolmentTTL]).
func (l *Ledger) NewEnrolment(ttl time.Duration) (token string, e hub.Enrolment) {
	if ttl <= 0 {
		ttl = hub.EnrolmentTTL
	}
	var secret [24]byte
	_, _ = rand.Read(secret[:])
	token = "fhe_" + base64.RawURLEncoding.EncodeToString(secret[:])
	return token, hub.Enrolment{Hash: hashOf(token), ExpiresAt: l.now().Add(ttl)}
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// RegisterNode makes a node that waits for its enrolment. Errors: [hub.ErrNodeExists], [hub.ValidationError].
func (l *Ledger) RegisterNode(tx store.Tx, id string, labels map[string]string, e hub.Enrolment) (*hub.Node, error) {
	if err := hub.ValidID(id); err != nil {
		return nil, hub.Invalid("node_id", "%s", err)
	}
	node := &hub.Node{}
	node.Name, node.Labels, node.Finalizers = id, labels, []string{hub.NodeFinalizer}
	node.Status = hub.NodeStatus{Presence: hub.PresencePending, Since: l.now(), Enrolment: &e}
	err := hub.Nodes.Create(tx, node)
	if errors.Is(err, store.ErrExists) {
		return nil, hub.ErrNodeExists
	}
	return node, err
}

// RenewEnrolment replaces the enrolment token of a node. Until it is used, the present agent stays enrolled.
// Errors: [hub.NotFoundError], [hub.ErrNodeDeleting].
func (l *Ledger) RenewEnrolment(tx store.Tx, id string, e hub.Enrolment) (*hub.Node, error) {
	node, err := getNode(tx, id)
	if err != nil {
		return nil, err
	}
	if node.Deleting() {
		return nil, hub.ErrNodeDeleting
	}
	node.Status.Enrolment = &e
	return node, hub.Nodes.Update(tx, node)
}

// Enrol binds a node to an agent's key. The same token with the same key, again, answers the same credential.
// Otherwise the node starts afresh: cursor and boots are forgotten, restarts on their way are blocked because nobody
// can tell whether they ran, and the identity conflict is cleared. The request's protocol version, labels and key
// were validated by the caller. Errors: [hub.ErrEnrolment], [hub.ErrNodeDeleting].
func (l *Ledger) Enrol(tx store.Tx, req *agentapi.EnrolRequest) (*hub.Node, error) {
	node, err := hub.Nodes.Get(tx, req.NodeID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, hub.ErrEnrolment
	}
	if err != nil {
		return nil, err
	}
	e, now := node.Status.Enrolment, l.now()
	switch {
	case e == nil || subtle.ConstantTimeCompare([]byte(e.Hash), []byte(hashOf(req.EnrolmentToken))) == 0 || !now.Before(e.ExpiresAt):
		return nil, hub.ErrEnrolment
	case e.UsedBy != "" && e.UsedBy != req.PublicKey:
		return nil, hub.ErrEnrolment
	case node.Deleting():
		return nil, hub.ErrNodeDeleting
	case e.UsedBy != "":
		// The answer was lost: the agent asks again, perhaps in another boot.
		if boot := (hub.Boot{ID: req.BootID, Seq: req.BootSeq}); boot.Seq > node.Status.Boot.Seq {
			node.Status.Boot = boot
		}
		return node, hub.Nodes.Update(tx, node)
	}
	return node, l.enrol(tx, node, req)
}

// enrol gives the node a new credential.
func (l *Ledger) enrol(tx store.Tx, node *hub.Node, req *agentapi.EnrolRequest) error {
	b := l.open(tx, node)
	open, err := b.openIntents()
	if err != nil {
		return err
	}
	for _, o := range open {
		o.changed = o.Status.LoseNode(b.now)
	}
	if err := tx.DeleteBlob(cursorBlob(node.UID)); err != nil {
		return err
	}
	st := &node.Status
	st.Enrolment.UsedBy = req.PublicKey
	st.Credential = &hub.Credential{ID: l.cfg.NewID(), PublicKey: req.PublicKey, EnrolledAt: b.now}
	st.Boot = hub.Boot{ID: req.BootID, Seq: req.BootSeq}
	st.AgentVersion, st.ProtocolVersion, st.Capabilities, st.AgentLabels = req.AgentVersion, req.ProtocolVersion, req.Capabilities, req.Labels
	if at := conflictOf(node); at >= 0 {
		st.Conditions = append(st.Conditions[:at:at], st.Conditions[at+1:]...)
	}
	if err := b.setPresence(tx, node, hub.PresenceOffline); err != nil {
		return err
	}
	_, err = b.save(tx)
	return err
}

// BootInfo is what an agent tells of itself when it asks for a session.
type BootInfo struct {
	Boot            hub.Boot
	AgentVersion    string
	ProtocolVersion int
	Capabilities    []string
}

// NewBoot makes a boot the node's newest, or finds that it is already. Errors: [hub.ErrNotEnrolled] (no node, or
// credential is not its current one), [hub.ErrSessionSuperseded] (older than the newest), [hub.ErrIdentityConflict] (the number of the
// newest, another id): for the last two the caller notes the conflict, in another transaction ([Ledger.NoteConflict]).
func (l *Ledger) NewBoot(tx store.Tx, id, credential string, info BootInfo) (*hub.Node, error) {
	node, err := hub.Nodes.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, hub.ErrNotEnrolled
	}
	if err != nil {
		return nil, err
	}
	st := &node.Status
	switch newest := st.Boot; {
	case st.Credential == nil || st.Credential.ID != credential:
		return nil, hub.ErrNotEnrolled
	case info.Boot.Seq < newest.Seq:
		return nil, hub.ErrSessionSuperseded
	case info.Boot.Seq == newest.Seq && info.Boot != newest:
		return nil, hub.ErrIdentityConflict
	}
	st.Boot = info.Boot
	st.AgentVersion, st.ProtocolVersion, st.Capabilities = info.AgentVersion, info.ProtocolVersion, info.Capabilities
	return node, hub.Nodes.Update(tx, node)
}
