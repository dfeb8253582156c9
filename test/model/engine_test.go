package model

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"freehold.dev/freehold/internal/agent"
	"freehold.dev/freehold/internal/hub"
)

// What a content does is its first word.
const (
	runsWell     = "well"
	rejected     = "rejected"      // told by the engine before it starts
	rejectedLate = "rejected-late" // told by a run that ends
	fails        = "fails"         // until the faults stop
	slow         = "slow"          // not ready until the faults stop
	finishes     = "finishes"      // by itself, when it was ready
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// run is a pipeline with processes, whoever remembers it.
type run struct {
	stream, token, version, digest string
	behaviour                      string
	core                           *agent.Core
	started, ready, stopping       bool
}

// engine runs the streams of a node. Its runs outlive the agent.
type engine struct {
	runs   map[string]*run
	healed bool
}

func newEngine() *engine { return &engine{runs: map[string]*run{}} }

// tokens of the runs of a boot, in order.
func (e *engine) tokens(core *agent.Core) []string {
	var out []string
	for token, r := range e.runs {
		if r.core == core {
			out = append(out, token)
		}
	}
	slices.Sort(out)
	return out
}

func behaviourOf(content string) string {
	first, _, _ := strings.Cut(content, " ")
	return first
}

func invalidConfig() *hub.Failure {
	return &hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config", Message: "the engine does not take it"}
}

// act does one thing that the core asked for.
func (n *node) act(i int) {
	n.w.t.Helper()
	e := n.pending[i]
	n.pending = slices.Delete(n.pending, i, i+1)
	switch e.Kind {
	case agent.EffectFetch:
		n.fetch(e)
	case agent.EffectCheck:
		if behaviourOf(e.Content) == rejected {
			n.w.note("%s: engine rejects %s for %s", n.name, e.ConfigVersion, e.Stream)
			n.core.Checked(ctx, e.Stream, e.Token, invalidConfig())
			return
		}
		n.core.Checked(ctx, e.Stream, e.Token, nil)
	case agent.EffectStart:
		if behaviourOf(e.Content) == rejected {
			n.w.note("%s: engine cannot start %s with %s", n.name, e.Stream, e.ConfigVersion)
			delete(n.engine.runs, e.Token)
			n.core.Started(ctx, e.Stream, e.Token, invalidConfig())
			return
		}
		n.engine.runs[e.Token].started = true
		n.core.Started(ctx, e.Stream, e.Token, nil)
	case agent.EffectStop:
		if r := n.engine.runs[e.Token]; r != nil { // it may have ended by itself meanwhile
			r.stopping = true
		}
	}
}

// progress lets a run get on by itself, and tells whether it did.
func (n *node) progress(r *run) bool {
	n.w.t.Helper()
	end := func(why *hub.Failure) bool {
		delete(n.engine.runs, r.token)
		n.w.note("%s: run of %s with %s ends: %v", n.name, r.stream, r.version, why)
		n.core.Ended(ctx, r.stream, r.token, why)
		return true
	}
	healed := n.engine.healed
	switch {
	case !r.started:
		return false
	case r.stopping:
		return end(nil)
	case r.behaviour == rejectedLate:
		return end(invalidConfig())
	case r.behaviour == fails && !healed:
		return end(&hub.Failure{Class: hub.Transient, Code: "exit_status", Message: "it ended with status 1"})
	case r.behaviour == slow && !healed:
		return false
	case r.behaviour == finishes && r.ready:
		return end(nil)
	case r.ready:
		return false
	}
	r.ready = true
	n.w.note("%s: run of %s with %s is ready", n.name, r.stream, r.version)
	n.core.Ready(ctx, r.stream, r.token)
	return true
}
