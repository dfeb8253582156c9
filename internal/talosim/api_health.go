package talosim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

// healthCheck is one thing that must hold in a healthy cluster.
type healthCheck struct {
	name  string
	check func(*cluster, []view) error
}

var healthChecks = []healthCheck{
	{"etcd to be healthy", func(c *cluster, views []view) error {
		if !c.quorate(views) {
			return errors.New("etcd has no quorum")
		}
		return nil
	}},
	{"etcd members to be consistent across nodes", func(c *cluster, views []view) error {
		return everyView(views, func(v view) error {
			if _, ok := c.member(v.etcd); v.role.IsControlPlane() && !ok {
				return errors.New("is not a member of etcd")
			}
			return nil
		})
	}},
	{"apid to be ready", func(_ *cluster, views []view) error {
		return everyView(views, func(v view) error { return v.session.serviceHealthy("apid") })
	}},
	{"kubelet to be healthy", func(_ *cluster, views []view) error {
		return everyView(views, func(v view) error { return v.session.serviceHealthy("kubelet") })
	}},
	{"all nodes to finish boot sequence", func(_ *cluster, views []view) error {
		return everyView(views, func(v view) error {
			if stage := v.session.currentStage().String(); stage != "running" {
				return fmt.Errorf("is %s", stage)
			}
			return nil
		})
	}},
	{"all k8s nodes to report ready", func(c *cluster, views []view) error {
		return everyView(views, func(v view) error {
			o, ok := c.kube.Get(kubeapi.Nodes, "", v.hostname)
			if !ok {
				return errors.New("has no Node")
			}
			if kubeapi.Condition(o, "Ready") != "True" {
				return errors.New("its Node is not ready")
			}
			return nil
		})
	}},
}

// everyView tells which machines fail a check.
func everyView(views []view, check func(view) error) error {
	var failed []string
	for _, v := range views {
		err := errors.New("cannot be reached")
		if v.online {
			err = check(v)
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s %s", v.addr, err))
		}
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, ", "))
	}
	return nil
}

func (s *session) serviceHealthy(id string) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	i := slices.IndexFunc(s.services, func(svc *service) bool { return svc.id == id })
	if i < 0 || !s.services[i].running() || !s.services[i].healthy {
		return fmt.Errorf("%s is not healthy", id)
	}
	return nil
}

// HealthCheck implements the cluster API: it waits for each check in turn and tells how it goes.
func (*clusterService) HealthCheck(in *clusterapi.HealthCheckRequest, out grpc.ServerStreamingServer[clusterapi.HealthCheckProgress]) error {
	s, err := secure(out.Context())
	if err != nil {
		return err
	}
	wait := in.GetWaitTimeout().AsDuration()
	if wait <= 0 {
		wait = 20 * time.Minute
	}
	ctx, cancel := context.WithTimeout(out.Context(), wait)
	defer cancel()
	wanted := append(slices.Clone(in.GetClusterInfo().GetControlPlaneNodes()), in.GetClusterInfo().GetWorkerNodes()...)
	for _, c := range healthChecks {
		if err := s.waitHealthy(ctx, c, wanted, func(msg string) error {
			return out.Send(&clusterapi.HealthCheckProgress{Message: fmt.Sprintf("waiting for %s: %s", c.name, msg)})
		}); err != nil {
			return err
		}
	}
	return nil
}

// waitHealthy waits until a check holds for the wanted machines, or for all of the cluster.
func (s *session) waitHealthy(ctx context.Context, c healthCheck, wanted []string, tell func(string) error) error {
	said := ""
	for msg := "..."; ; {
		changed := s.cluster.notify.wait()
		if msg != said {
			if err := tell(msg); err != nil {
				return err
			}
			said = msg
		}
		views := s.cluster.views()
		if len(wanted) > 0 {
			views = slices.DeleteFunc(views, func(v view) bool { return !slices.Contains(wanted, v.addr.String()) })
			if len(views) < len(wanted) {
				msg = fmt.Sprintf("%d of %d nodes are there", len(views), len(wanted))
			}
		}
		if len(views) >= len(wanted) {
			err := c.check(s.cluster, views)
			if err == nil {
				return tell("OK")
			}
			msg = err.Error()
		}
		if msg != said {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.Errorf(codes.DeadlineExceeded, "healthcheck error: waiting for %s: %s", c.name, msg)
		}
	}
}
