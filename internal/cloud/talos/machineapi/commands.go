package machineapi

import (
	"cmp"
	"context"
	"slices"
	"strings"

	machinepb "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// EtcdMember is a member of the tenant's etcd.
type EtcdMember struct {
	ID uint64
	// Name is the machine's hostname.
	Name       string
	PeerURLs   []string
	ClientURLs []string
	// Learner has no vote yet.
	Learner bool
}

// EtcdMembers asks a control-plane machine for the members of its etcd, ordered by name and id. It is answered only
// by an etcd that has quorum.
func (c *Client) EtcdMembers(ctx context.Context) ([]EtcdMember, error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	resp, err := client.FilterMessages(c.machine.EtcdMemberList(ctx, &machinepb.EtcdMemberListRequest{}))
	if err != nil {
		return nil, c.classify(ctx, "list etcd members", err)
	}
	var members []EtcdMember
	for _, m := range resp.GetMessages() {
		for _, e := range m.GetMembers() {
			members = append(members, EtcdMember{
				ID: e.GetId(), Name: e.GetHostname(), PeerURLs: e.GetPeerUrls(), ClientURLs: e.GetClientUrls(), Learner: e.GetIsLearner(),
			})
		}
	}
	slices.SortFunc(members, func(a, b EtcdMember) int {
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return members, nil
}

// EtcdLeave makes a control-plane machine leave its etcd. It answers when the machine has left.
func (c *Client) EtcdLeave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, EtcdLeaveTimeout)
	defer cancel()
	_, err := client.FilterMessages(c.machine.EtcdLeaveCluster(ctx, &machinepb.EtcdLeaveClusterRequest{}))
	return c.classify(ctx, "leave etcd", err)
}

// EtcdRemove makes etcd forget a member that cannot leave by itself any more. It is asked of another member.
func (c *Client) EtcdRemove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	_, err := client.FilterMessages(c.machine.EtcdRemoveMemberByID(ctx, &machinepb.EtcdRemoveMemberByIDRequest{MemberId: id}))
	return c.classify(ctx, "remove an etcd member", err)
}

// ResetOptions tell how a machine is reset.
type ResetOptions struct {
	// Graceful cordons the node and leaves etcd first, and refuses if etcd would lose quorum.
	Graceful bool
	// Reboot afterwards, into maintenance mode; otherwise the machine halts.
	Reboot bool
}

// Reset wipes what the machine knows of its cluster: configuration, etcd data, everything but Talos itself, which it
// could not boot without. It answers when the machine has begun.
func (c *Client) Reset(ctx context.Context, o ResetOptions) error {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	_, err := client.FilterMessages(c.machine.Reset(ctx, &machinepb.ResetRequest{
		Graceful: o.Graceful, Reboot: o.Reboot, Mode: machinepb.ResetRequest_SYSTEM_DISK,
		SystemPartitionsToWipe: []*machinepb.ResetPartitionSpec{
			{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true},
		},
	}))
	return c.classify(ctx, "reset", err)
}

// Reboot reboots the machine. It answers when the machine has begun; a new boot id (see [Observation]) proves that
// it is back.
func (c *Client) Reboot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	_, err := client.FilterMessages(c.machine.Reboot(ctx, &machinepb.RebootRequest{}))
	return c.classify(ctx, "reboot", err)
}
