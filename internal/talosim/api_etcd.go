package talosim

import (
	"context"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// etcdCall checks that the call is to a control plane.
func etcdCall(ctx context.Context, api string) (*session, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return nil, errMaintenance
	}
	if !c.s.machineType().IsControlPlane() {
		return nil, status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", api)
	}
	return c.s, nil
}

// EtcdMemberList implements the machine API.
func (*machineService) EtcdMemberList(ctx context.Context, in *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	s, err := etcdCall(ctx, "member list")
	if err != nil {
		return nil, err
	}
	views := s.cluster.views()
	if in.GetQueryLocal() {
		if !runs(views, s.m.etcdData()) || s.m.etcdData() == 0 {
			return nil, status.Error(codes.Unavailable, "failed to list etcd members: dial tcp 127.0.0.1:2379: connect: connection refused")
		}
	} else if !s.cluster.quorate(views) {
		return nil, fmt.Errorf("failed to list etcd members: %w", errNoQuorum)
	}
	reply := &machineapi.EtcdMembers{}
	for _, m := range s.cluster.memberList() {
		em := &machineapi.EtcdMember{Id: m.ID, Hostname: m.Name, PeerUrls: []string{m.PeerURL}, IsLearner: m.Learner}
		if runs(views, m.ID) || !m.Learner {
			em.ClientUrls = []string{m.ClientURL}
		}
		reply.Members = append(reply.Members, em)
		reply.LegacyMembers = append(reply.LegacyMembers, m.Name)
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{reply}}, nil
}

// EtcdRemoveMemberByID implements the machine API.
func (*machineService) EtcdRemoveMemberByID(ctx context.Context, in *machineapi.EtcdRemoveMemberByIDRequest) (*machineapi.EtcdRemoveMemberByIDResponse, error) {
	s, err := etcdCall(ctx, "etcd remove member")
	if err != nil {
		return nil, err
	}
	if err := s.cluster.remove(in.GetMemberId()); err != nil {
		if errors.Is(err, errMemberNotFound) {
			return nil, status.Error(codes.NotFound, err.Error())
		}
		return nil, fmt.Errorf("failed to remove member: %w", err)
	}
	s.cluster.save()
	s.cluster.notify.broadcast()
	return &machineapi.EtcdRemoveMemberByIDResponse{Messages: []*machineapi.EtcdRemoveMemberByID{{}}}, nil
}

// EtcdLeaveCluster implements the machine API.
func (*machineService) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	s, err := etcdCall(ctx, "etcd leave")
	if err != nil {
		return nil, err
	}
	if s.m.etcdData() == 0 {
		return nil, errors.New("failed to leave cluster: etcd is not running")
	}
	if err := s.leaveEtcd(); err != nil {
		return nil, fmt.Errorf("failed to leave cluster: %w", err)
	}
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, nil
}

// EtcdForfeitLeadership implements the machine API.
func (*machineService) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	s, err := etcdCall(ctx, "etcd forfeit leadership")
	if err != nil {
		return nil, err
	}
	if !s.cluster.quorate(s.cluster.views()) {
		return nil, fmt.Errorf("failed to forfeit leadership: %w", errNoQuorum)
	}
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{}}}, nil
}

// EtcdStatus implements the machine API.
func (*machineService) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	s, err := etcdCall(ctx, "etcd status")
	if err != nil {
		return nil, err
	}
	views := s.cluster.views()
	id := s.m.etcdData()
	m, ok := s.cluster.member(id)
	if id == 0 || !ok || !runs(views, id) {
		return nil, errors.New("failed to query etcd status: dial tcp 127.0.0.1:2379: connect: connection refused")
	}
	revision := s.cluster.kube.Revision()
	st := &machineapi.EtcdMemberStatus{
		StorageVersion: "3.6.0", ProtocolVersion: constants.DefaultEtcdVersion[1:], MemberId: id, Leader: s.cluster.leader(views),
		DbSize: 20 << 20, DbSizeInUse: 8 << 20, RaftIndex: revision + 100, RaftTerm: 2, RaftAppliedIndex: revision + 100, IsLearner: m.Learner,
	}
	if st.Leader == 0 {
		st.Errors = []string{"etcdserver: no leader"}
	}
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: st}}}, nil
}

// EtcdAlarmList implements the machine API.
func (*machineService) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	if _, err := etcdCall(ctx, "etcd alarm list"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{}}}, nil
}

// EtcdAlarmDisarm implements the machine API.
func (*machineService) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmDisarmResponse, error) {
	if _, err := etcdCall(ctx, "etcd alarm disarm"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{{}}}, nil
}

// EtcdDefragment implements the machine API.
func (*machineService) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	if _, err := etcdCall(ctx, "etcd defragment"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}

// EtcdSnapshot implements the machine API: the snapshot is the simulation's own, not a bolt database.
func (*machineService) EtcdSnapshot(_ *machineapi.EtcdSnapshotRequest, out grpc.ServerStreamingServer[common.Data]) error {
	s, err := etcdCall(out.Context(), "etcd snapshot")
	if err != nil {
		return err
	}
	if !s.cluster.quorate(s.cluster.views()) {
		return fmt.Errorf("failed reading etcd snapshot: %w", errNoQuorum)
	}
	return sendData(out, s.cluster.kube.Snapshot())
}
