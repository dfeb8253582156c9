package talosim

import (
	"context"
	"errors"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errMaintenance = status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")

// Reboot implements the machine API.
func (*machineService) Reboot(ctx context.Context, in *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	actor := newActor()
	if err := c.s.m.submit(command{kind: commandReboot, actor: actor}); err != nil {
		return nil, err
	}
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: actor}}}, nil
}

// Shutdown implements the machine API.
func (*machineService) Shutdown(ctx context.Context, in *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	actor := newActor()
	if err := c.s.m.submit(command{kind: commandShutdown, actor: actor}); err != nil {
		return nil, err
	}
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: actor}}}, nil
}

// Upgrade implements the machine API: the version is the tag of the installer image.
func (*machineService) Upgrade(ctx context.Context, in *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	tag, ok := imageTag(in.GetImage())
	if !ok {
		return nil, status.Errorf(codes.Unknown, "error validating installer image %q: no version tag", in.GetImage())
	}
	if id := c.s.m.etcdData(); id != 0 && !in.GetForce() {
		if !c.s.cluster.quorate(c.s.cluster.views()) {
			return nil, status.Error(codes.Unknown, "error validating etcd for upgrade: etcd cluster is not healthy")
		}
	}
	actor := newActor()
	if err := c.s.m.submit(command{kind: commandUpgrade, actor: actor, version: tag}); err != nil {
		return nil, err
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received", ActorId: actor}}}, nil
}

// Reset implements the machine API.
func (*machineService) Reset(ctx context.Context, in *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	if in.UserDisksToWipe != nil && in.Mode == machineapi.ResetRequest_SYSTEM_DISK {
		return nil, errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	cmd := command{kind: commandReset, actor: newActor(), graceful: in.GetGraceful(), reboot: in.GetReboot()}
	for _, p := range in.GetSystemPartitionsToWipe() {
		switch p.GetLabel() {
		case constants.StatePartitionLabel:
			cmd.wipeState = true
		case constants.EphemeralPartitionLabel:
			cmd.wipeEphemeral = true
		case constants.MetaPartitionLabel:
		default:
			return nil, status.Errorf(codes.InvalidArgument, "reset failed: partition with label %q wasn't found", p.GetLabel())
		}
	}
	if len(in.GetSystemPartitionsToWipe()) == 0 && in.Mode != machineapi.ResetRequest_USER_DISKS {
		cmd.wipeState, cmd.wipeEphemeral = true, true
	}
	if err := c.s.m.submit(cmd); err != nil {
		return nil, err
	}
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: cmd.actor}}}, nil
}

// Bootstrap implements the machine API: it makes this control plane the first etcd member of its cluster.
func (*machineService) Bootstrap(ctx context.Context, in *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	s := c.s
	if !s.machineType().IsControlPlane() {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node")
	}
	if !s.hasService("etcd") {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	if _, wrong := s.m.fault(WrongClock); wrong {
		return nil, status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if in.GetRecoverEtcd() {
		return nil, status.Error(codes.FailedPrecondition, "etcd recovery is not simulated")
	}
	if s.m.etcdData() != 0 {
		return nil, status.Error(codes.AlreadyExists, errDataNotEmpty.Error())
	}
	v, ok := s.m.view()
	if !ok {
		return nil, status.Error(codes.Unavailable, "the machine is going down")
	}
	id, err := s.cluster.bootstrap(v)
	if err != nil {
		return nil, status.Error(codes.AlreadyExists, err.Error())
	}
	s.m.setEtcdData(id)
	s.cluster.save()
	s.m.changed()
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}
