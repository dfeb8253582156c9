package machineapi

import (
	"context"
	"io"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	machinepb "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"freehold.dev/freehold/internal/cloud"
)

// Status is how a machine does at this moment.
type Status struct {
	// Stage of its life. Removing and updating are not among them: what Talos calls resetting is stopping here, and
	// what it calls upgrading is restarting, because only who ordered it knows why.
	Stage cloud.Stage
	// Ready: all services are healthy and the node is in its cluster. False in maintenance mode.
	Ready bool
	// Maintenance: no configuration yet.
	Maintenance bool
	// Unmet says what keeps the machine from being ready, in Talos' words ("services: etcd not healthy").
	Unmet []string
}

// Observation is all that a machine tells of itself. What it does not know or does not grant stays empty.
type Observation struct {
	Status
	// BootID of the running kernel; empty in maintenance mode.
	BootID string
	// Role, KubernetesVersion and ConfigDigest (see [ConfigDigest]) are empty in maintenance mode.
	Role              cloud.Role
	TalosVersion      string // without "v"
	KubernetesVersion string // without "v"
	ConfigDigest      string
	Hardware          cloud.Hardware
	Network           cloud.Network
	Schematic         cloud.Schematic
}

// Status asks how the machine does.
func (c *Client) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	st, err := c.status(ctx)
	return st, c.classify(ctx, "ask for its status", err)
}

func (c *Client) status(ctx context.Context) (Status, error) {
	res, err := safe.StateGetByID[*runtime.MachineStatus](ctx, c.cosi, runtime.MachineStatusID)
	if state.IsNotFoundError(err) {
		// The machine has just started its API.
		return c.statusOf(runtime.MachineStatusSpec{}), nil
	}
	if err != nil {
		return Status{}, err
	}
	return c.statusOf(*res.TypedSpec()), nil
}

// statusOf translates Talos' notion of a stage. A machine that answers in maintenance mode has no configuration,
// whatever else it is doing.
func (c *Client) statusOf(spec runtime.MachineStatusSpec) Status {
	st := Status{Ready: spec.Status.Ready && spec.Stage == runtime.MachineStageRunning}
	for _, u := range spec.Status.UnmetConditions {
		st.Unmet = append(st.Unmet, u.Name+": "+u.Reason)
	}
	switch spec.Stage {
	case runtime.MachineStageMaintenance:
		st.Stage, st.Maintenance = cloud.StageInitializing, true
	case runtime.MachineStageInstalling:
		st.Stage = cloud.StageInstalling
	case runtime.MachineStageRebooting, runtime.MachineStageUpgrading:
		st.Stage = cloud.StageRestarting
	case runtime.MachineStageShuttingDown, runtime.MachineStageResetting:
		st.Stage = cloud.StageStopping
	case runtime.MachineStageRunning:
		st.Stage = cloud.StageConfiguring
		if st.Ready {
			st.Stage = cloud.StageReady
		}
	default:
		st.Stage = cloud.StageConfiguring
		if !c.secured {
			st.Stage = cloud.StageInitializing
		}
	}
	return st
}

// Observe asks the machine for everything.
func (c *Client) Observe(ctx context.Context) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	var o Observation
	st, err := c.status(ctx)
	if err != nil {
		return o, c.classify(ctx, "observe", err)
	}
	o.Status = st
	questions := []func(context.Context, *Observation) error{
		c.readVersion, c.readSystem, c.readProcessors, c.readMemory, c.readDisks, c.readHostname, c.readAddresses,
		c.readGateways, c.readExtensions,
	}
	if c.secured {
		questions = append(questions, c.readConfig, c.readBootID)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, q := range questions {
		// Each question fills fields of its own.
		g.Go(func() error { return unknown(q(gctx, &o)) })
	}
	if err := g.Wait(); err != nil {
		return Observation{}, c.classify(ctx, "observe", err)
	}
	return o, nil
}

// unknown lets a question pass that the machine cannot or may not answer: the fields stay empty.
func unknown(err error) error {
	if state.IsNotFoundError(err) {
		return nil
	}
	switch client.StatusCode(err) {
	case codes.NotFound, codes.Unimplemented, codes.PermissionDenied, codes.InvalidArgument:
		return nil
	}
	return err
}

func (c *Client) readVersion(ctx context.Context, o *Observation) error {
	v, err := safe.StateGetByID[*runtime.Version](ctx, c.cosi, "version")
	if err == nil {
		o.TalosVersion = strings.TrimPrefix(v.TypedSpec().Version, "v")
		return nil
	}
	if unknown(err) != nil || !c.secured {
		return err
	}
	resp, err := client.FilterMessages(c.machine.Version(ctx, &emptypb.Empty{}))
	if err != nil {
		return err
	}
	for _, m := range resp.GetMessages() {
		o.TalosVersion = strings.TrimPrefix(m.GetVersion().GetTag(), "v")
	}
	return nil
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

func (c *Client) readBootID(ctx context.Context, o *Observation) error {
	stream, err := c.machine.Read(ctx, &machinepb.ReadRequest{Path: bootIDPath})
	if err != nil {
		return err
	}
	r, err := client.ReadStream(stream)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	text, err := io.ReadAll(io.LimitReader(r, 128))
	if err != nil {
		return err
	}
	o.BootID = strings.TrimSpace(string(text))
	return nil
}

// Watch follows the machine's status and configuration. It calls stands when it has begun, once, and changed for
// each change since then. It answers when the watch has ended: with ctx's error if ctx ended, else with what ended it.
func (c *Client) Watch(ctx context.Context, stands, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan state.Event)
	targets := []resource.Metadata{*runtime.NewMachineStatus().Metadata()}
	if c.secured {
		targets = append(targets, configMetadata())
	}
	for _, md := range targets {
		if err := c.cosi.Watch(ctx, md, events); err != nil {
			return c.classify(ctx, "watch", err)
		}
	}
	// The first event of each is its present state.
	begun := map[resource.Type]bool{}
	for {
		var e state.Event
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e = <-events:
		}
		switch {
		case e.Type == state.Errored:
			return c.classify(ctx, "watch", e.Error)
		case e.Type == state.Bootstrapped, e.Type == state.Noop:
		case begun[e.Resource.Metadata().Type()]:
			changed()
		default:
			begun[e.Resource.Metadata().Type()] = true
			if len(begun) == len(targets) {
				stands()
			}
		}
	}
}
