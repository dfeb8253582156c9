package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
)

// progress is what a watcher is shown of a tenant on its way: the tenant, its machines by stage, its apply. It takes
// in what is observed and tells, in words, what that changed.
type progress struct {
	name    string
	started time.Time
	tenant  *client.Tenant
	gone    bool
	// machines of the tenant, and those that it had while it was watched.
	machines map[string]*machineProgress
	apply    *client.Apply
	groups   groupsProgress
	told     map[string]bool
	// reached is when the tenant first had a phase or boolean, since started: "active", "available".
	reached map[string]time.Duration
}

// groupsProgress tells which node groups have another number of machines than is declared.
type groupsProgress struct {
	listed bool
	behind map[string]bool
}

func (g *groupsProgress) saw(e client.Event[client.NodeGroup]) {
	if g.behind == nil {
		g.behind = map[string]bool{}
	}
	name := e.Object.Metadata.Name
	switch e.Type {
	case client.Bookmark:
		g.listed = true
	case client.Deleted:
		delete(g.behind, name)
	default:
		g.behind[name] = e.Object.Status.Machines.Total != e.Object.Spec.Count
	}
}

func (g *groupsProgress) uptodate() bool {
	for _, behind := range g.behind {
		if behind {
			return false
		}
	}
	return g.listed
}

type machineProgress struct {
	name, label, address string
	role                 cloud.Role
	stage                string
	ready, released      bool
	since                time.Time
	// readyAfter and releasedAfter count from the progress' start.
	readyAfter, releasedAfter time.Duration
}

// note is something that happened. Important ones are shown on a terminal too, where the rest is seen in the area.
type note struct {
	text      string
	important bool
}

func newProgress(name string, started time.Time) *progress {
	return &progress{
		name: name, started: started, machines: map[string]*machineProgress{}, told: map[string]bool{},
		reached: map[string]time.Duration{},
	}
}

// sawTenant takes in the tenant, nil when it is gone.
func (p *progress) sawTenant(t *client.Tenant, now time.Time) []note {
	old := p.tenant
	if t == nil {
		p.gone = true
		p.reach("gone", now)
		for name := range p.machines {
			p.lostMachine(name, now) // which it may not have been told yet
		}
		return []note{{text: fmt.Sprintf("tenant %s is gone", p.name)}}
	}
	p.tenant = t
	var notes []note
	if old == nil || old.Status.Phase != t.Status.Phase {
		p.reach(string(t.Status.Phase), now)
		notes = append(notes, note{text: fmt.Sprintf("tenant %s: %s", p.name, t.Status.Phase)})
	}
	if p.deleting() {
		return append(notes, p.trouble(t)...)
	}
	for _, b := range []struct {
		name    string
		was, is bool
	}{
		{"available", old != nil && old.Status.Available, t.Status.Available},
		{"api ready", old != nil && old.Status.APIReady, t.Status.APIReady},
		{"control plane ready", old != nil && old.Status.ControlPlaneReady, t.Status.ControlPlaneReady},
		{"ready", old != nil && old.Status.Ready, t.Status.Ready},
	} {
		if b.is && !b.was {
			p.reach(b.name, now)
			notes = append(notes, note{text: fmt.Sprintf("tenant %s: %s", p.name, b.name)})
		}
	}
	return append(notes, p.trouble(t)...)
}

// trouble tells each trouble once.
func (p *progress) trouble(t *client.Tenant) []note {
	var notes []note
	for _, trouble := range troubles(t.Status.Conditions, false) {
		if !p.told[trouble] {
			p.told[trouble] = true
			notes = append(notes, note{"! " + trouble, true})
		}
	}
	return notes
}

// troubles are the conditions that an operator should know of; patient ones too, if all: those that wait for
// something that may come by itself.
func troubles(conditions []cloud.Condition, all bool) []string {
	var out []string
	for _, c := range conditions {
		bad := c.Status == cloud.ConditionTrue
		switch c.Type {
		case cloud.ConditionApplied:
			bad = c.Status == cloud.ConditionFalse && c.Message != "" && c.Reason != "Applying" && (all || c.Reason != "Waiting" && c.Reason != "Queued")
		case cloud.ConditionMachinesMissing, cloud.ConditionMachinesUnreachable, "Blocked", "Drifted":
		default:
			bad = false
		}
		if bad {
			out = append(out, c.Type+": "+first(c.Message, c.Reason))
		}
	}
	return out
}

func (p *progress) reach(what string, now time.Time) {
	if _, ok := p.reached[what]; !ok {
		p.reached[what] = now.Sub(p.started)
	}
}

// sawMachine takes in a machine of the tenant.
func (p *progress) sawMachine(m *client.Machine, now time.Time) []note {
	v, ok := p.machines[m.Metadata.Name]
	if !ok {
		v = &machineProgress{name: m.Metadata.Name, since: now}
		p.machines[m.Metadata.Name] = v
	}
	v.label, v.address, v.released = slotName(m), m.Spec.ManagementAddress, false
	v.role = cloud.Role(m.Metadata.Labels[cloud.LabelRole])
	is := string(m.Status.Stage)
	if m.Metadata.DeletionTimestamp != nil {
		is = string(cloud.StageRemoving)
	}
	var notes []note
	if is != v.stage || m.Status.Ready != v.ready {
		v.stage, v.since = is, now
		v.ready = m.Status.Ready
		if v.ready && ok && v.readyAfter == 0 {
			v.readyAfter = now.Sub(p.started)
		}
		notes = append(notes, note{text: fmt.Sprintf("machine %s (%s): %s", v.label, v.address, v.state())})
	}
	return notes
}

// state is the stage, or "starting" while Talos says that all is well but the cluster does not yet.
func (m *machineProgress) state() string {
	switch {
	case m.released:
		return "released"
	case m.stage == string(cloud.StageReady) && !m.ready:
		return "joining"
	}
	return first(m.stage, "waiting")
}

// stateOf is a machine's state, with what the running apply tells of it before its own word can be had: a machine on
// its way into a cluster answers nobody but who holds the cluster's keys, which the plane has after the apply.
func (p *progress) stateOf(m *machineProgress) string {
	if p.apply == nil || p.apply.Result != client.ApplyRunning || m.released {
		return m.state()
	}
	for _, r := range p.apply.Resources {
		if !strings.Contains(r.Address, `["`+m.label+`"]`) {
			continue
		}
		switch {
		case r.State == "running" && r.Action == "delete":
			return "being reset"
		case r.State == "running":
			return "getting config"
		case r.State == "done" && r.Action == "create" && m.stage == string(cloud.StageInitializing):
			return "config applied"
		}
	}
	return m.state()
}

// lostMachine takes in that a machine is no longer the tenant's.
func (p *progress) lostMachine(name string, now time.Time) []note {
	m, ok := p.machines[name]
	if !ok || m.released {
		return nil
	}
	m.released, m.ready, m.since = true, false, now
	m.releasedAfter = now.Sub(p.started)
	return []note{{text: fmt.Sprintf("machine %s (%s): released", m.label, m.address)}}
}

func slotName(m *client.Machine) string {
	group, slot := m.Metadata.Labels[cloud.LabelNodeGroup], m.Metadata.Annotations[cloud.AnnotationSlot]
	switch {
	case group == "":
		return m.Metadata.Name[:min(8, len(m.Metadata.Name))]
	case slot == "":
		return group
	}
	return group + "-" + slot
}

// sawApply takes in the tenant's latest apply.
func (p *progress) sawApply(a *client.Apply) []note {
	var notes []note
	old := p.apply
	if old == nil || old.ID != a.ID {
		old = &client.Apply{}
		if a.Result == client.ApplyRunning || p.apply != nil {
			notes = append(notes, note{text: "apply started"})
		}
	}
	// What is only read is no work to be shown.
	a.Resources = slices.DeleteFunc(slices.Clone(a.Resources), func(r client.ApplyResource) bool { return r.Action == "read" || strings.HasPrefix(r.Address, "data.") })
	p.apply = a
	if a.Phase == "applying" && old.Phase != a.Phase {
		notes = append(notes, note{text: "apply: " + planText(a.Plan)})
	}
	for _, r := range a.Resources {
		was := slices.IndexFunc(old.Resources, func(o client.ApplyResource) bool { return o.Address == r.Address })
		if (r.State == "done" || r.State == "failed") && (was < 0 || old.Resources[was].State != r.State) && a.Result == client.ApplyRunning {
			notes = append(notes, note{text: fmt.Sprintf("apply: %s %s (%s)", resourceName(r.Address), past(r), seconds(inSeconds(r.Seconds)))})
		}
	}
	if a.Result != client.ApplyRunning && old.Result != a.Result && (old.Result != "" || a.Result != "succeeded") {
		text := fmt.Sprintf("apply %s after %s", a.Result, seconds(inSeconds(a.Seconds)))
		if a.Error != "" {
			text = "! " + text + ": " + a.Error
		}
		notes = append(notes, note{text, a.Error != ""})
	}
	return notes
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func planText(s client.PlanSummary) string {
	if s == (client.PlanSummary{}) {
		return "nothing to change"
	}
	return fmt.Sprintf("%d to add, %d to change, %d to destroy", s.Add, s.Change, s.Destroy)
}

func past(r client.ApplyResource) string {
	if r.State == "failed" {
		return "failed"
	}
	switch r.Action {
	case "create":
		return "created"
	case "update":
		return "updated"
	case "delete":
		return "destroyed"
	}
	return "done"
}

// resourceName shortens a resource's address: the quotes are of no use to a reader.
func resourceName(address string) string { return strings.ReplaceAll(address, `"`, "") }

// sorted answers the machines in the order of their slots.
func (p *progress) sorted() []*machineProgress {
	var all []*machineProgress
	for _, m := range p.machines {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *machineProgress) int {
		return 2*strings.Compare(a.label, b.label) + strings.Compare(a.name, b.name)
	})
	return all
}

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// lines draws the area.
func (p *progress) lines(l *live, now time.Time) []string {
	frame := string(spinner[int(now.Sub(p.started)/(100*time.Millisecond))%len(spinner)])
	return append(append(p.tenantLines(l, frame, now), p.applyLines(l, frame, now)...), p.machineLines(l, frame, now)...)
}

func (p *progress) tenantLines(l *live, frame string, now time.Time) []string {
	if p.tenant == nil {
		return []string{frame + " tenant " + p.name}
	}
	s := p.tenant.Status
	mark, phase := l.paint(yellow, frame), string(s.Phase)
	switch {
	case p.gone:
		mark, phase = l.paint(green, "✓"), "gone"
	case s.Phase == cloud.PhaseActive && s.Ready:
		mark = l.paint(green, "✓")
	}
	line := fmt.Sprintf("%s tenant %s  %s  %s", mark, l.paint(bold, p.name), phase, l.paint(dim, seconds(now.Sub(p.started))))
	if !p.gone && s.Phase != cloud.PhaseRemoving {
		line += fmt.Sprintf("   machines %d/%d   %s api   %s control plane   %s ready",
			s.Machines.Healthy, s.Machines.Total, l.mark(s.APIReady), l.mark(s.ControlPlaneReady), l.mark(s.Ready))
	}
	return []string{line}
}

func (l *live) mark(ok bool) string {
	if ok {
		return l.paint(green, "✓")
	}
	return l.paint(dim, "·")
}

func (p *progress) applyLines(l *live, frame string, now time.Time) []string {
	a := p.apply
	if a == nil || p.gone || p.deleting() && !a.Destroy {
		return nil // what was heard last of a gone tenant's apply is not its end
	}
	if a.Result != client.ApplyRunning {
		mark := l.paint(green, "✓")
		if a.Result != "succeeded" {
			mark = l.paint(red, "✗")
		}
		return []string{fmt.Sprintf("  %s apply %s  %s", mark, a.Result, l.paint(dim, seconds(inSeconds(a.Seconds))))}
	}
	done := 0
	var running []string
	for _, r := range a.Resources {
		switch r.State {
		case "done", "failed":
			done++
		case "running":
			running = append(running, resourceName(r.Address)+" "+l.paint(dim, seconds(now.Sub(r.StartedAt))))
		}
	}
	line := fmt.Sprintf("  %s apply %s  %s", l.paint(yellow, frame), first(a.Phase, "starting"), l.paint(dim, seconds(now.Sub(a.StartedAt))))
	if len(a.Resources) > 0 {
		line += fmt.Sprintf("   %s %d/%d", bar(done, len(a.Resources), 16), done, len(a.Resources))
	}
	out := []string{line}
	for _, r := range running[:min(len(running), 3)] {
		out = append(out, "      "+r)
	}
	return out
}

func (p *progress) deleting() bool {
	return p.tenant != nil && p.tenant.Metadata.DeletionTimestamp != nil
}

// bar draws n of total as a bar.
func bar(n, total, columns int) string {
	full := n * columns / max(total, 1)
	return strings.Repeat("━", full) + strings.Repeat("┄", columns-full)
}

func (p *progress) machineLines(l *live, frame string, now time.Time) []string {
	machines := p.sorted()
	labels, addresses := 0, 0
	for _, m := range machines {
		labels, addresses = max(labels, len(m.label)), max(addresses, len(m.address))
	}
	var out []string
	for _, m := range machines[:min(len(machines), 24)] {
		mark, took := l.paint(yellow, frame), "for "+seconds(now.Sub(m.since))
		switch {
		case m.released:
			mark, took = l.paint(green, "✓"), "after "+seconds(m.releasedAfter)
		case m.ready && m.readyAfter > 0:
			mark, took = l.paint(green, "✓"), "after "+seconds(m.readyAfter)
		case m.ready:
			mark, took = l.paint(green, "✓"), ""
		}
		out = append(out, fmt.Sprintf("  %s %s  %s  %s  %s", mark, pad(m.label, labels), pad(m.address, addresses), pad(p.stateOf(m), 14), l.paint(dim, took)))
	}
	if more := len(machines) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("    … and %d more", more))
	}
	return out
}
