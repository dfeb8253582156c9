package ledger

import (
	"errors"
	"testing"

	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestWritesAreGuardedByTheirPrecondition(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	write := func(ifMatch, ifNoneMatch string) error {
		m, err := hub.ParseMatch(ifMatch, ifNoneMatch)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.tryDeclare(Mutation{Node: "n", Resource: "orders", State: hub.Running, ConfigVersion: w.config, Match: m})
		return err
	}
	for _, c := range []struct {
		match, noneMatch string
		expected         int64
		taken            bool
	}{
		{`"generation-1"`, "", 1, false},
		{"*", "", -1, false},
		{"", "*", 0, true},
		{"", "*", 0, false},
		{`"generation-0"`, "", 0, false},
		{`"generation-1"`, "", 1, true},
		{`"generation-1"`, "", 1, false},
		{"*", "", -1, true},
		{"", "", 0, true},
	} {
		err := write(c.match, c.noneMatch)
		var conflict *hub.GenerationConflictError
		if c.taken && err != nil || !c.taken && (!errors.As(err, &conflict) || conflict.Expected != c.expected) {
			t.Errorf("%s|%s: %v", c.match, c.noneMatch, err)
		}
	}
	if g := w.stream("n", "orders").Spec.Generation(); g != 4 {
		t.Errorf("generation %d: refused writes take none", g)
	}
}

func TestTargetsAreValidated(t *testing.T) {
	w := newWorld(t)
	w.online("n")
	forNode := w.publish(hub.EngineNode, "limits: {}")
	for _, c := range []struct {
		name, resource, config, field string
		state                         hub.State
	}{
		{"no config version", "orders", "", "config_version", hub.Running},
		{"one that does not exist", "orders", "cfg-99", "config_version", hub.Running},
		{"one for nodes", "orders", forNode, "config_version", hub.Running},
		{"one for streams", hub.NodeConfig, w.config, "config_version", hub.Running},
		{"a state that is only observed", "orders", w.config, "state", hub.Starting},
		{"a bad name", "__orders", w.config, "stream_id", hub.Running},
	} {
		_, err := w.tryDeclare(Mutation{Node: "n", Resource: c.resource, State: c.state, ConfigVersion: c.config})
		var invalid *hub.ValidationError
		if !errors.As(err, &invalid) || invalid.Fields[0].Field != c.field {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var missing *hub.NotFoundError
	if _, err := w.tryDeclare(Mutation{Node: "m", Resource: "orders", State: hub.Stopped}); !errors.As(err, &missing) || missing.Kind != "node" {
		t.Errorf("no such node: %v", err)
	}
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", State: hub.Stopped}); err != nil {
		t.Errorf("stopped needs no config version: %v", err)
	}
	if _, err := w.tryDeclare(Mutation{Node: "n", Resource: hub.NodeConfig, Verb: hub.ConfigApply, ConfigVersion: forNode}); err != nil {
		t.Errorf("the node's own: %v", err)
	}
}

func TestWhatAMutationDoesNotNameStays(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	other := w.publish(hub.EngineProcess, "command: other")
	w.declare("n", "orders", hub.Stopped)
	apply, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", Verb: hub.ConfigApply, ConfigVersion: other})
	if err != nil || apply.Desired.State != hub.Stopped || apply.Desired.ConfigVersion != other {
		t.Fatalf("apply: %+v %v", apply, err)
	}
	start, err := w.tryDeclare(Mutation{Node: "n", Resource: "orders", State: hub.Running})
	if err != nil || start.Desired.ConfigVersion != other {
		t.Fatalf("start: %+v %v", start, err)
	}
	first, err := w.tryDeclare(Mutation{Node: "n", Resource: "new", Verb: hub.ConfigApply, ConfigVersion: other})
	if err != nil || first.Desired.State != hub.Running {
		t.Fatalf("apply to a new stream: %+v %v", first, err)
	}
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestRollbackGoesBackToWhatRan(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	rollback := Mutation{Node: "n", Resource: "orders", Verb: hub.ConfigRollback}
	var missing *hub.NotFoundError
	if _, err := w.tryDeclare(rollback); !errors.As(err, &missing) {
		t.Fatalf("of nothing: %v", err)
	}
	first := w.config
	w.declare("n", "orders", hub.Running)
	if _, err := w.tryDeclare(rollback); !errors.Is(err, hub.ErrNoRollback) {
		t.Fatalf("to nothing: %v", err)
	}
	a.work()
	second := w.publish(hub.EngineProcess, "command: second")
	w.config = second
	w.declare("n", "orders", hub.Running)
	a.work()
	w.config = w.publish(hub.EngineProcess, "command: broken")
	a.broken = &hub.Failure{Class: hub.ConfigRejected, Code: "invalid_config"}
	w.declare("n", "orders", hub.Running)
	a.work()
	a.broken = nil
	back, err := w.tryDeclare(rollback)
	if err != nil || back.Desired.ConfigVersion != second || back.Verb != hub.ConfigRollback {
		t.Fatalf("from what never ran: %+v %v", back, err)
	}
	a.work()
	w.expect("n", "orders", "in_sync")
	back, err = w.tryDeclare(rollback)
	if err != nil || back.Desired.ConfigVersion != first {
		t.Fatalf("from what runs: %+v %v", back, err)
	}
}

func TestAbsentKeepsItsGeneration(t *testing.T) {
	w := newWorld(t)
	a := w.online("n")
	w.declare("n", "orders", hub.Running)
	a.work()
	w.declare("n", "orders", hub.Absent)
	a.work()
	w.expect("n", "orders", "in_sync")
	if i := w.declare("n", "orders", hub.Running); i.Generation != 3 {
		t.Fatalf("generation %d", i.Generation)
	}
	a.work()
	w.expect("n", "orders", "in_sync")
}

func TestConfigVersionsAreKeptOnce(t *testing.T) {
	w := newWorld(t)
	publish := func(engine hub.Engine, content string) (version string, created bool) {
		w.update(func(tx store.Tx) error {
			c, fresh, err := w.ledger.PublishConfig(tx, engine, content, "", "ann")
			if err == nil {
				version, created = c.Name, fresh
			}
			return err
		})
		return version, created
	}
	if v, created := publish(hub.EngineProcess, "command: sleep"); v != "cfg-1" || created {
		t.Errorf("the same again: %s, created %v", v, created)
	}
	if v, created := publish(hub.EngineBenthos, "command: sleep"); v != "cfg-2" || !created {
		t.Errorf("for another engine: %s, created %v", v, created)
	}
	w.view(func(r store.Reader) error {
		c, content, err := w.ledger.ConfigContent(r, "cfg-1")
		if err != nil || content != "command: sleep" || c.Spec.Engine != hub.EngineProcess || c.Spec.Size != len(content) {
			t.Errorf("content %q of %+v: %v", content, c, err)
		}
		var missing *hub.NotFoundError
		if _, _, err := w.ledger.ConfigContent(r, "cfg-9"); !errors.As(err, &missing) {
			t.Errorf("of nothing: %v", err)
		}
		return nil
	})
	var invalid *hub.ValidationError
	for _, engine := range []hub.Engine{"", "java"} {
		if err := w.try(func(tx store.Tx) error {
			_, _, err := w.ledger.PublishConfig(tx, engine, "x", "", "ann")
			return err
		}); !errors.As(err, &invalid) {
			t.Errorf("engine %q: %v", engine, err)
		}
	}
}

func TestDamagedContentIsNotHandedOut(t *testing.T) {
	w := newWorld(t)
	w.update(func(tx store.Tx) error {
		c, err := hub.Configs.Get(tx, w.config)
		if err != nil {
			return err
		}
		return tx.PutBlob(hub.ConfigBlob(c.Spec.Digest), []byte("something else"))
	})
	w.view(func(r store.Reader) error {
		if _, content, err := w.ledger.ConfigContent(r, w.config); err == nil {
			t.Errorf("it answered %q", content)
		}
		return nil
	})
}
