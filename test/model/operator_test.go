package model

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/idempotency"
	"freehold.dev/freehold/internal/kernel/store"
)

// target is what the operators last declared of a stream, by the hub's own answers.
type target struct {
	desired hub.Desired
	intent  string
}

// write is a mutation that an operator sends.
type write struct {
	method, path string
	body         any
	node, stream string
	// state and version are what it asks for; "" keeps.
	state   hub.State
	version string
	restart bool
	// existing: the stream has to be there. rollback: to where, is not asked.
	existing, rollback bool
	// match is the generation of If-Match, -1 without.
	match int64
	key   string
	// cancel is the intent to cancel.
	cancel string
}

func (p *write) String() string {
	s := fmt.Sprintf("%s %s", p.method, strings.TrimPrefix(p.path, "/api/v1/"))
	if p.state != "" || p.version != "" {
		s += fmt.Sprintf(" %s %s", p.state, p.version)
	}
	if p.match >= 0 {
		s += fmt.Sprintf(" If-Match %d", p.match)
	}
	if p.key != "" {
		s += " key " + p.key
	}
	return s
}

func (p *write) request() *request {
	r := &request{method: p.method, path: p.path, header: operatorHeader()}
	if p.body != nil {
		r.body = encode(p.body)
	}
	if p.match >= 0 {
		r.header["If-Match"] = hub.ETag(p.match)
	}
	if p.key != "" {
		r.header[idempotency.Header] = p.key
	}
	return r
}

// kept is an answer that a retry must get again; nil: nobody has seen it.
type kept struct {
	out *served
	at  time.Time
}

// operator is all that people do to the hub.
type operator struct {
	w       *world
	targets map[string]target
	// contents of the config versions.
	contents map[string]string
	// wells are the versions that run well.
	wells   []string
	answers map[string]kept
	writes  []*write
	// cancels are the intents that were cancelled.
	cancels map[string]bool
}

func newOperator(w *world) *operator {
	return &operator{w: w, targets: map[string]target{}, contents: map[string]string{}, answers: map[string]kept{}, cancels: map[string]bool{}}
}

func (o *operator) publishAll() {
	for _, behaviour := range []string{runsWell, runsWell, rejected, rejectedLate, fails, slow, finishes} {
		o.publish(behaviour)
	}
}

// publish makes a config version of a content that there was not before.
func (o *operator) publish(behaviour string) string {
	o.w.t.Helper()
	content := o.w.id(behaviour + " ")
	out := o.w.hub.serve(&request{
		method: http.MethodPost, path: "/api/v1/config-versions", header: operatorHeader(),
		body: encode(client.ConfigContent{Engine: hub.EngineProcess, Content: content}),
	})
	switch {
	case out.died || o.w.hub.store.full:
		o.readConfigs()
		return ""
	case out.status != http.StatusCreated:
		o.w.t.Fatalf("publish: %d %s", out.status, out.body)
	}
	version := decode[client.ConfigPublished](o.w, out.body).ConfigVersion
	o.w.note("operator: %s is %q", version, content)
	o.readConfigs()
	return version
}

// readConfigs takes over what the hub has.
func (o *operator) readConfigs() {
	clear(o.contents)
	o.wells = nil
	for _, c := range get[client.HubPage[client.ConfigVersion]](o.w, "/api/v1/config-versions?page_size=100").Items {
		full := get[client.ConfigVersion](o.w, "/api/v1/config-versions/"+c.ConfigVersion)
		o.contents[c.ConfigVersion] = full.Content
		if behaviourOf(full.Content) == runsWell {
			o.wells = append(o.wells, c.ConfigVersion)
		}
	}
	slices.Sort(o.wells)
}

func (o *operator) versions() []string { return slices.Sorted(maps.Keys(o.contents)) }

func (o *operator) put(node, stream string, state hub.State, version string) *write {
	return &write{
		method: http.MethodPut, path: streamPath(node, stream) + "/desired-state", node: node, stream: stream, state: state, version: version,
		body: client.DesiredState{State: state, ConfigVersion: version}, match: -1,
	}
}

func (o *operator) restart(node, stream string) *write {
	return &write{method: http.MethodPost, path: streamPath(node, stream) + "/actions/restart", node: node, stream: stream, restart: true, match: -1}
}

func streamPath(node, stream string) string { return "/api/v1/nodes/" + node + "/streams/" + stream }

// do sends a write that arrives.
func (o *operator) do(p *write) *served {
	o.w.t.Helper()
	out := o.arrived(p)
	o.w.check()
	return out
}

// arrived lets the hub handle a write, and compares what it answers with what it must.
func (o *operator) arrived(p *write) *served {
	o.w.t.Helper()
	w := o.w
	allowed, full := o.refusals(p), w.hub.store.full
	at := w.hub.now()
	out := w.hub.serve(p.request())
	w.note("hub: operator: %s: %s %s", p, out, generationOf(out))
	if k, again := o.answers[p.key]; p.key != "" && again && at.Sub(k.at) < idempotency.Kept {
		o.replayed(p, k, out, full)
		return out
	}
	switch {
	case out.done() && p.cancel != "":
		o.cancels[p.cancel] = true
	case out.done():
		o.adopt(p, out)
	case out.died:
	case full:
		if out.status != http.StatusServiceUnavailable {
			w.t.Fatalf("%s: the hub's disk is full, and it answered %s", p, out)
		}
	case !slices.Contains(allowed, out.status):
		w.t.Fatalf("%s was answered %d %s, allowed refusals are %v", p, out.status, out.body, allowed)
	}
	if out.ok() && len(allowed) > 0 {
		w.t.Fatalf("%s was accepted, and must be refused with one of %v", p, allowed)
	}
	if p.key != "" && out.ok() {
		o.answers[p.key] = kept{out, at}
	}
	if p.key != "" && out.died && out.committed {
		o.answers[p.key] = kept{nil, at}
	}
	return out
}

func generationOf(out *served) string { return out.header.Get("ETag") }

// replayed checks the answer to a retry.
func (o *operator) replayed(p *write, k kept, out *served, full bool) {
	o.w.t.Helper()
	switch {
	case out.died, full && out.status == http.StatusServiceUnavailable:
	case k.out == nil:
		if out.header.Get("Idempotency-Replayed") != "true" {
			o.w.t.Fatalf("the retry of %s, which was done, was not recognized: %d %s", p, out.status, out.body)
		}
		o.answers[p.key] = kept{out, k.at}
	case out.status != k.out.status || !bytes.Equal(out.body, k.out.body) || out.header.Get("ETag") != k.out.header.Get("ETag") ||
		out.header.Get("Idempotency-Replayed") != "true":
		o.w.t.Fatalf("the retry of %s was answered %d %s, and %d %s before", p, out.status, out.body, k.out.status, k.out.body)
	}
}

// refusals are the statuses with which the hub has to refuse a write; none: it has to accept it.
func (o *operator) refusals(p *write) []int {
	if p.cancel != "" {
		return o.cancelRefusals(p.cancel)
	}
	var out []int
	t, declared := o.targets[p.node+"/"+p.stream]
	if p.match >= 0 && p.match != t.desired.Generation {
		out = append(out, http.StatusPreconditionFailed)
	}
	if !declared && (p.restart || p.existing || p.rollback) {
		return append(out, http.StatusNotFound)
	}
	if p.restart && t.desired.State != hub.Running {
		out = append(out, http.StatusConflict)
	}
	if p.rollback && !o.canRollBack(p) {
		out = append(out, http.StatusConflict)
	}
	if version := p.version; !p.restart && !p.rollback {
		if version == "" {
			version = t.desired.ConfigVersion
		}
		if o.contents[version] == "" && (p.state == hub.Running || version != "") {
			out = append(out, http.StatusUnprocessableEntity)
		}
	}
	return out
}

func (o *operator) canRollBack(p *write) (can bool) {
	o.w.hub.view(func(r store.Reader) error {
		s, err := hub.Streams.Get(r, hub.StreamName(p.node, p.stream))
		can = err == nil && s.Spec.RollbackTarget() != ""
		return err
	})
	return can
}

func (o *operator) cancelRefusals(intent string) (out []int) {
	o.w.hub.view(func(r store.Reader) error {
		i, err := hub.Operations.Get(r, intent)
		switch {
		case err != nil:
			out = []int{http.StatusNotFound}
		case i.Status.Ended():
			out = []int{http.StatusConflict}
		}
		return nil
	})
	return out
}

// adopt takes over what the hub accepted, answered or not.
func (o *operator) adopt(p *write, out *served) {
	o.w.t.Helper()
	name := p.node + "/" + p.stream
	before := o.targets[name]
	now := o.read(p.node, p.stream)
	want := hub.Desired{State: p.state, ConfigVersion: p.version, Generation: before.desired.Generation + 1, ActionID: now.desired.ActionID}
	if want.State == "" {
		if want.State = before.desired.State; want.State == "" || want.State == hub.Absent {
			want.State = hub.Running
		}
	}
	if want.ConfigVersion == "" {
		want.ConfigVersion = before.desired.ConfigVersion
	}
	if p.rollback {
		want.ConfigVersion = now.desired.ConfigVersion
	}
	if want.ConfigVersion != "" {
		want.ConfigDigest = digestOf(o.contents[want.ConfigVersion])
	}
	if o.w.hub.restored && now.desired.Generation > want.Generation {
		want.Generation = now.desired.Generation // the node knew a higher one
	}
	if now.desired != want || p.restart != (want.ActionID != "") {
		o.w.t.Fatalf("%s was accepted after %+v, and made %+v", p, before.desired, now.desired)
	}
	if out.ok() {
		a := decode[client.StreamAccepted](o.w, out.body)
		if a.Generation != now.desired.Generation || a.IntentID != now.intent || a.DesiredState != want.State ||
			out.header.Get("ETag") != hub.ETag(a.Generation) || out.header.Get("Location") != "/api/v1/operations/"+a.IntentID {
			o.w.t.Fatalf("%s was answered %s, ETag %s, Location %s, and made %+v", p, out.body, out.header.Get("ETag"), out.header.Get("Location"), now)
		}
	}
	o.targets[name] = now
}

// read is what the hub has of a stream.
func (o *operator) read(node, stream string) target {
	o.w.t.Helper()
	s := get[client.Stream](o.w, streamPath(node, stream))
	if s.Desired == nil {
		return target{}
	}
	return target{desired: *s.Desired, intent: s.IntentID}
}

// readAll takes over what the hub has, after its records went back in time.
func (o *operator) readAll() {
	clear(o.targets)
	for _, n := range o.w.nodes {
		for _, s := range get[client.HubPage[client.Stream]](o.w, "/api/v1/nodes/"+n.name+"/streams?page_size=100").Items {
			if s.Desired != nil {
				o.targets[n.name+"/"+s.StreamID] = target{*s.Desired, s.IntentID}
			}
		}
	}
	o.readConfigs()
}
