package agentapi

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/rest"
)

// Bounds of what an agent may send. Texts that are longer are cut, anything else is refused.
const (
	maxBootID     = 128
	maxStreams    = 5000
	maxActions    = 64
	maxLabels     = 64
	maxLabelText  = 253
	maxCapability = 64
	maxVersion    = 64
	maxMessage    = 2 << 10
	maxAttemptID  = 128
	// maxNumber is what JSON numbers carry exactly. It leaves room to count on: a node that reported the largest
	// generation there is could never be given another.
	maxNumber = 1<<53 - 1
)

// faults gathers what is wrong with an input, up to a number that helps.
type faults []rest.Cause

const maxFaults = 20

func (f *faults) add(field, format string, args ...any) {
	if len(*f) < maxFaults {
		*f = append(*f, rest.Cause{Field: field, Message: fmt.Sprintf(format, args...)})
	}
}

func (f *faults) check(field string, err error) {
	if err != nil {
		f.add(field, "%s", err.Error())
	}
}

// err is nil without faults.
func (f faults) err() error {
	if p := problem.Invalid(f...); p != nil {
		return p
	}
	return nil
}

func (f *faults) boot(id string, seq int64) {
	if id == "" || len(id) > maxBootID || !printable(id) {
		f.add("boot_id", "must be 1 to %d printable ASCII characters", maxBootID)
	}
	if seq < 1 || seq > maxNumber {
		f.add("boot_seq", "must be 1 to %d", int64(maxNumber))
	}
}

func (f *faults) agent(version string, capabilities []string) {
	if len(version) > maxVersion || !printable(version) {
		f.add("agent_version", "must be at most %d printable ASCII characters", maxVersion)
	}
	if len(capabilities) > maxCapability {
		f.add("capabilities", "must not be more than %d", maxCapability)
	}
	for i, c := range capabilities {
		if c == "" || len(c) > maxLabelText || !printable(c) {
			f.add(fmt.Sprintf("capabilities[%d]", i), "must be 1 to %d printable ASCII characters", maxLabelText)
		}
	}
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func validateEnrolment(in *protocol.EnrolRequest) error {
	var f faults
	f.check("node_id", hub.ValidID(in.NodeID))
	f.boot(in.BootID, in.BootSeq)
	f.agent(in.AgentVersion, in.Capabilities)
	if key, err := base64.StdEncoding.Strict().DecodeString(in.PublicKey); err != nil || len(key) != ed25519.PublicKeySize {
		f.add("public_key", "must be the base64 of an Ed25519 key, %d bytes", ed25519.PublicKeySize)
	}
	if len(in.Labels) > maxLabels {
		f.add("labels", "must not be more than %d", maxLabels)
	}
	for k, v := range in.Labels {
		if k == "" || len(k) > maxLabelText || len(v) > maxLabelText || !printable(k) || !utf8.ValidString(v) {
			f.add("labels", "names are 1 to %d printable ASCII characters, values at most %d", maxLabelText, maxLabelText)
			break
		}
	}
	return f.err()
}

func validateSession(in *protocol.SessionRequest) error {
	var f faults
	f.check("node_id", hub.ValidID(in.NodeID))
	f.boot(in.BootID, in.BootSeq)
	f.agent(in.AgentVersion, in.Capabilities)
	return f.err()
}

// validateReport refuses what no agent should send, and cuts the texts that may be long.
func validateReport(in *protocol.Report) error {
	var f faults
	f.boot(in.BootID, in.BootSeq)
	if in.ReportSeq < 1 || in.ReportSeq > maxNumber {
		f.add("report_seq", "must be 1 to %d", int64(maxNumber))
	}
	if len(in.Streams) > maxStreams {
		f.add("streams", "must not be more than %d", maxStreams)
		return f.err()
	}
	if len(in.Attempts) > maxStreams {
		f.add("attempts", "must not be more than %d", maxStreams)
		return f.err()
	}
	seen := make(map[string]struct{}, len(in.Streams))
	for i := range in.Streams {
		s := &in.Streams[i]
		if _, twice := seen[s.StreamID]; twice {
			f.add(fmt.Sprintf("streams[%d].stream_id", i), "%q is listed twice", s.StreamID)
		}
		seen[s.StreamID] = struct{}{}
		f.stream(i, s)
	}
	for i := range in.Attempts {
		f.attempt(i, &in.Attempts[i])
	}
	return f.err()
}

func (f *faults) stream(i int, s *protocol.StreamReport) {
	field := func(name string) string { return fmt.Sprintf("streams[%d].%s", i, name) }
	if err := hub.ValidResource(s.StreamID); err != nil {
		f.add(field("stream_id"), "%s", err.Error())
	}
	if !s.State.Observable() {
		f.add(field("state"), "%q is not a state", s.State)
	}
	if s.Generation < 0 || s.Generation > maxNumber {
		f.add(field("generation"), "must be 0 to %d", int64(maxNumber))
	}
	if len(s.ConfigVersion) > maxLabelText || !printable(s.ConfigVersion) {
		f.add(field("config_version"), "must be at most %d printable ASCII characters", maxLabelText)
	}
	if len(s.ConfigDigest) > maxLabelText || !printable(s.ConfigDigest) {
		f.add(field("config_digest"), "must be at most %d printable ASCII characters", maxLabelText)
	}
	f.actions(field("completed_actions"), s.CompletedActions)
	f.actions(field("interrupted_actions"), s.InterruptedActions)
	f.failure(field("error"), s.Error)
	if m := s.Metrics; m != nil && (m.InputMessages < 0 || m.OutputMessages < 0 || m.Errors < 0 || m.LagMessages < -1 ||
		m.Restarts < 0 || m.UptimeSeconds < 0 || m.CPUSeconds < 0 || m.MemoryBytes < 0) {
		f.add(field("metrics"), "must not be negative")
	}
}

func (f *faults) actions(field string, ids []string) {
	if len(ids) > maxActions {
		f.add(field, "must not be more than %d", maxActions)
		return
	}
	for i, id := range ids {
		if err := hub.ValidID(id); err != nil {
			f.add(fmt.Sprintf("%s[%d]", field, i), "%s", err.Error())
		}
	}
}

func (f *faults) failure(field string, failure *hub.Failure) {
	if failure == nil {
		return
	}
	switch failure.Class {
	case hub.NodeUnavailable, hub.Timeout, hub.Transient, hub.Capacity, hub.Permanent, hub.Incompatible, hub.ConfigRejected:
	default:
		f.add(field+".class", "%q is not a class that a node can tell", failure.Class)
	}
	if failure.Code == "" || len(failure.Code) > maxLabelText || !printable(failure.Code) {
		f.add(field+".code", "must be 1 to %d printable ASCII characters", maxLabelText)
	}
	failure.Message = cut(failure.Message)
}

func (f *faults) attempt(i int, a *protocol.AttemptReport) {
	field := func(name string) string { return fmt.Sprintf("attempts[%d].%s", i, name) }
	if a.AttemptID == "" || len(a.AttemptID) > maxAttemptID || !printable(a.AttemptID) {
		f.add(field("attempt_id"), "must be 1 to %d printable ASCII characters", maxAttemptID)
	}
	switch a.State {
	case hub.Acknowledged, hub.Succeeded:
	case hub.AttemptFail:
		if a.Failure == nil {
			f.add(field("failure"), "must say why the attempt failed")
		}
	default:
		f.add(field("state"), "must be acknowledged, succeeded or failed, not %q", a.State)
	}
	f.failure(field("failure"), a.Failure)
}

// cut shortens a text that is shown to people.
func cut(text string) string {
	if len(text) > maxMessage {
		text = text[:maxMessage] + " …"
	}
	return strings.ToValidUTF8(text, "")
}
