package hub

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRunning means that a restart was asked of a stream that is not desired running.
	ErrNotRunning = errors.New("the stream is not desired running: only a running stream can be restarted")
	// ErrNodeDeleting means that the node is being deleted and takes no more writes.
	ErrNodeDeleting = errors.New("the node is being deleted")
	// ErrNodeExists means that a node of that id was registered before.
	ErrNodeExists = errors.New("a node with this id exists already")
	// ErrNoRollback means that no other config version of the stream ever converged.
	ErrNoRollback = errors.New("there is no config version to roll back to: none but the present one has converged")

	// ErrEnrolment means that the enrolment token is wrong, expired, or was used with another key; which of these is not told.
	ErrEnrolment = errors.New("the enrolment token is not valid (any more): make a new one with freehold node enrol")
	// ErrNotEnrolled means that the node does not exist (any more), or the credential is not its current one.
	ErrNotEnrolled = errors.New("this agent is not enrolled as that node: enrol it again")
	// ErrSessionSuperseded means that a newer boot of the node is known.
	ErrSessionSuperseded = errors.New("a newer boot of this node is known to the hub")
	// ErrIdentityConflict means that another agent has the node's identity (a boot of the same number has another id).
	ErrIdentityConflict = errors.New("another agent uses this node's identity: enrol one of the two as another node")
	// ErrFullReportRequired means that the first report of a boot has to be full.
	ErrFullReportRequired = errors.New("the first report of a boot has to be full")
)

// NotFoundError tells what does not exist.
type NotFoundError struct {
	// Kind is "node", "stream", "operation" or "config version".
	Kind, ID string
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no %s %q", e.Kind, e.ID) }

// GenerationConflictError refuses a write whose precondition does not hold.
type GenerationConflictError struct {
	Node, Resource string
	// Expected generation; 0: the stream was to be new; -1: it was to exist.
	Expected, Current int64
}

func (e *GenerationConflictError) Error() string {
	switch {
	case e.Expected < 0:
		return "Expected an existing stream, and it was never declared"
	default:
		return fmt.Sprintf("Expected generation %d, current generation %d", e.Expected, e.Current)
	}
}

// TerminalError refuses to cancel what has ended.
type TerminalError struct {
	IntentID string
	State    IntentState
}

func (e *TerminalError) Error() string {
	return fmt.Sprintf("operation %s has ended: it is %s", e.IntentID, e.State)
}

// StaleReportError refuses a report that is not newer than the newest.
type StaleReportError struct{ Cursor Cursor }

func (e *StaleReportError) Error() string {
	return fmt.Sprintf("the report is not newer than report %d of boot %d", e.Cursor.ReportSeq, e.Cursor.Boot.Seq)
}

// FieldError is one fault of an input.
type FieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// ValidationError lists the faults of an input that is well-formed.
type ValidationError struct{ Fields []FieldError }

func (e *ValidationError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = f.Field + " " + f.Message
	}
	return strings.Join(parts, "; ")
}

// Invalid makes a ValidationError of one fault.
func Invalid(field, format string, args ...any) *ValidationError {
	return &ValidationError{Fields: []FieldError{{field, fmt.Sprintf(format, args...)}}}
}
