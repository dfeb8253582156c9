package ledger

import (
	"errors"
	"time"

	"freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

var errNotYet = errors.New("not written yet")

// Mutation is an operator's write to a stream, or to the node-wide configuration (Resource [hub.NodeConfig]).
type Mutation struct {
	Node, Resource string
	Verb           hub.Verb
	// State is the target; "" keeps the desired one (running when there is none, or when it is absent).
	State hub.State
	// ConfigVersion is the target; "" keeps the one that the stream has.
	ConfigVersion string
	// ActionID of a restart; "" makes one. It must not be one that the stream had before.
	ActionID string
	// Match is the precondition.
	Match                    hub.Match
	Principal, CorrelationID string
}

// Declare makes a write durable as a new generation with a new intent. It supersedes the intent before it, whose
// attempt, if it was sent, runs out by itself. A rollback (Verb ConfigRollback) without ConfigVersion goes to the
// stream's rollback target.
//
// Errors: [hub.NotFoundError] (node; stream for Restart and ConfigRollback of one never declared),
// [hub.GenerationConflictError], [hub.ValidationError], [hub.ErrNotRunning], [hub.ErrNodeDeleting],
// [hub.ErrNoRollback].
func (l *Ledger) Declare(tx store.Tx, m Mutation) (*hub.Intent, error) { return nil, errNotYet }

// Cancel ends an intent. What was not dispatched is not sent any more; an attempt that was runs out and shows its
// outcome. Errors: [hub.NotFoundError], [hub.TerminalError].
func (l *Ledger) Cancel(tx store.Tx, intentID string) (*hub.Intent, error) { return nil, errNotYet }

// Dispatch claims and sends what is due for the node, at most limit commands, and sends again what this boot has
// not acknowledged for a while. Nothing is sent to a boot before its first full report, nor to a node that is
// offline. fullRequired tells that the node should report fully, now.
//
// Errors: [hub.ErrNotEnrolled] (no such node), [hub.ErrSessionSuperseded] (boot is not the node's newest).
func (l *Ledger) Dispatch(tx store.Tx, node string, boot hub.Boot, limit int) (commands []agentapi.Command, fullRequired bool, err error) {
	return nil, false, errNotYet
}

// HasWork tells whether Dispatch would answer commands, and whether fullRequired, without a transaction.
func (l *Ledger) HasWork(r store.Reader, node string, boot hub.Boot) (commands, fullRequired bool, err error) {
	return false, false, errNotYet
}

// Outcome of a report.
type Outcome struct {
	// Changed tells whether anything was stored.
	Changed bool
	// FullRequired tells that the node should report fully, now.
	FullRequired bool
	// Wake tells that there is something to dispatch to the node.
	Wake bool
}

// Report takes over what a node observes and what became of its attempts. It makes the node online.
//
// Errors: [hub.ErrNotEnrolled], [hub.StaleReportError], [hub.ErrFullReportRequired], [hub.ErrSessionSuperseded].
func (l *Ledger) Report(tx store.Tx, node string, rep *agentapi.Report) (Outcome, error) {
	return Outcome{}, errNotYet
}

// ReportChanges tells whether Report would store anything, without a transaction. When it would not, the report is
// fully taken over by remembering its cursor; fullRequired is as in Outcome. Errors are those of Report.
func (l *Ledger) ReportChanges(r store.Reader, node string, rep *agentapi.Report) (changes, fullRequired bool, err error) {
	return false, false, errNotYet
}

// Cursor answers the newest stored report of a node: the zero Cursor when there is none.
func (l *Ledger) Cursor(r store.Reader, nodeUID string) (hub.Cursor, error) {
	return hub.Cursor{}, errNotYet
}

// Step is what an intent needs next.
type Step struct {
	// Node of the intent, "" when there is no such intent.
	Node string
	// Advance: the clock has overtaken the intent; call Advance in a transaction.
	Advance bool
	// WakeNode: the node's poll has something to fetch.
	WakeNode bool
	// FullRequired: the node should report fully.
	FullRequired bool
	// After: look again after this time; 0: when the intent changes.
	After time.Duration
}

// Next tells what an intent needs, without a transaction.
func (l *Ledger) Next(r store.Reader, intentID string) (Step, error) { return Step{}, errNotYet }

// Advance does what the clock asks of an intent (an attempt's lease ran out), and tells what comes next.
func (l *Ledger) Advance(tx store.Tx, intentID string) (Step, error) { return Step{}, errNotYet }

// SetPresence stores that a node went online or offline, and what follows for its streams. A node that never enrolled
// stays pending. It answers whether anything changed.
func (l *Ledger) SetPresence(tx store.Tx, node string, p hub.Presence) (bool, error) {
	return false, errNotYet
}

// NewEnrolment makes an enrolment token and its record, good for ttl (0: [hub.EnrolmentTTL]).
func (l *Ledger) NewEnrolment(ttl time.Duration) (token string, e hub.Enrolment) {
	return "", hub.Enrolment{}
}

// RegisterNode makes a node that waits for its enrolment. Errors: [hub.ErrNodeExists], [hub.ValidationError].
func (l *Ledger) RegisterNode(tx store.Tx, id string, labels map[string]string, e hub.Enrolment) (*hub.Node, error) {
	return nil, errNotYet
}

// RenewEnrolment replaces the enrolment token of a node. Until it is used, the present agent stays enrolled.
// Errors: [hub.NotFoundError], [hub.ErrNodeDeleting].
func (l *Ledger) RenewEnrolment(tx store.Tx, id string, e hub.Enrolment) (*hub.Node, error) {
	return nil, errNotYet
}

// Enrol binds a node to an agent's key. The same token with the same key, again, answers the same credential.
// With a new key the node starts afresh: cursor and boots are forgotten, restarts on their way are blocked because nobody
// can tell whether they ran, and the identity conflict is cleared. The request's protocol version, labels and key
// were validated by the caller. Errors: [hub.ErrEnrolment], [hub.ErrNodeDeleting].
func (l *Ledger) Enrol(tx store.Tx, req *agentapi.EnrolRequest) (*hub.Node, error) {
	return nil, errNotYet
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
func (l *Ledger) NewBoot(tx store.Tx, node, credential string, b BootInfo) (*hub.Node, error) {
	return nil, errNotYet
}

// NoteConflict sets the node's condition IdentityConflict; ClearConflict removes it when it was not noted for quiet.
// They answer whether the condition came or went.
func (l *Ledger) NoteConflict(tx store.Tx, node, message string) (bool, error) {
	return false, errNotYet
}

// ClearConflict removes the condition IdentityConflict when it was last noted at least quiet ago.
func (l *Ledger) ClearConflict(tx store.Tx, node string, quiet time.Duration) (bool, error) {
	return false, errNotYet
}

// Deletion asks for a node's deletion.
type Deletion struct {
	Node                     string
	Force                    bool
	Principal, CorrelationID string
}

// DeleteNode declares all streams of a node absent, and the node deleting until they are; gone tells that it went at
// once: it never enrolled, has nothing to stop, or Force. Deleting again is no error. Errors: [hub.NotFoundError].
func (l *Ledger) DeleteNode(tx store.Tx, d Deletion) (gone bool, err error) { return false, errNotYet }

// FinishNode removes a deleting node whose streams are absent, with its streams and credentials, and answers whether it is gone.
func (l *Ledger) FinishNode(tx store.Tx, node string) (gone bool, err error) { return false, errNotYet }

// PublishConfig stores content for an engine, and answers the version; the same content again answers the same one, created
// false. The content was linted by the caller. Errors: [hub.ValidationError].
func (l *Ledger) PublishConfig(tx store.Tx, engine hub.Engine, content, description, principal string) (c *hub.Config, created bool, err error) {
	return nil, false, errNotYet
}

// ConfigContent answers a config version with its content, verified. Errors: [hub.NotFoundError].
func (l *Ledger) ConfigContent(r store.Reader, version string) (*hub.Config, string, error) {
	return nil, "", errNotYet
}

// Expired answers up to limit names of operations that retention lets go.
func (l *Ledger) Expired(r store.Reader, limit int) ([]string, error) { return nil, errNotYet }

// Trim removes those of the named operations that retention lets go, and answers how many.
func (l *Ledger) Trim(tx store.Tx, names []string) (int, error) { return 0, errNotYet }
