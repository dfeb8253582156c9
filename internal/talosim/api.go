package talosim

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	inspectapi "github.com/siderolabs/talos/pkg/machinery/api/inspect"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// services are the gRPC services of every machine; which one is asked is in the context of a call.
type services struct {
	machine *machineService
	cluster *clusterService
	storage *storageService
	time    *timeService
	inspect *inspectService
	state   *stateService
}

func newServices() *services {
	return &services{
		machine: &machineService{}, cluster: &clusterService{}, storage: &storageService{}, time: &timeService{},
		inspect: &inspectService{}, state: &stateService{},
	}
}

func (s *services) register(server *grpc.Server) {
	machineapi.RegisterMachineServiceServer(server, s.machine)
	clusterapi.RegisterClusterServiceServer(server, s.cluster)
	storageapi.RegisterStorageServiceServer(server, s.storage)
	timeapi.RegisterTimeServiceServer(server, s.time)
	inspectapi.RegisterInspectServiceServer(server, s.inspect)
	cosiv1alpha1.RegisterStateServer(server, s.state)
}

// call is one request to one machine, authenticated.
type call struct {
	s     *session
	roles role.Set
}

type callKey struct{}

func withCall(ctx context.Context, c call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callFrom returns the call of a handler's context; the interceptors put it there.
func callFrom(ctx context.Context) call {
	c, _ := ctx.Value(callKey{}).(call)
	return c
}

// maintenance tells whether the machine has no config yet.
func (c call) maintenance() bool { return c.s.cluster == nil }

// openAPI serves the Talos API on the machine's address until the session ends or closeAPI is called.
func (s *session) openAPI(tlsConfig *tls.Config) error {
	s.apiMu.Lock()
	defer s.apiMu.Unlock()
	if s.apiClosed {
		return nil
	}
	listener, err := s.m.talosGate.listen()
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(tlsConfig)),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.SharedWriteBuffer(true),
		grpc.ReadBufferSize(4096), grpc.WriteBufferSize(4096),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	s.m.sim.api.register(server)
	s.api = server
	s.wg.Go(func() { _ = server.Serve(listener) })
	return nil
}

// closeAPI ends the API as a machine that goes down in order does: streams of events and logs are sent to their end,
// watches end, calls are answered, then connections are closed.
func (s *session) closeAPI() {
	server := s.takeAPI()
	if server == nil {
		return
	}
	s.events.close()
	s.logs.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.GracefulStop()
	}()
	for _, step := range []struct {
		patience time.Duration
		then     func()
	}{{50 * time.Millisecond, s.endStreams}, {2 * time.Second, func() { s.cut(server) }}} {
		t := time.NewTimer(step.patience)
		select {
		case <-done:
			t.Stop()
			return
		case <-t.C:
			step.then()
		}
	}
	<-done
}

// cutAPI ends the API as a power cut does.
func (s *session) cutAPI() {
	if server := s.takeAPI(); server != nil {
		s.cut(server)
	}
}

// cut closes connections below the server first: one that is still in its TLS handshake would hold the server up.
func (s *session) cut(server *grpc.Server) {
	s.m.talosGate.close()
	server.Stop()
}

func (s *session) takeAPI() *grpc.Server {
	s.apiMu.Lock()
	defer s.apiMu.Unlock()
	server := s.api
	s.api = nil
	s.apiClosed = true
	return server
}

// callerRoles are those of the client's certificate; without a config everyone is a reader.
func (s *session) callerRoles(ctx context.Context) (role.Set, error) {
	if s.cluster == nil {
		return role.MakeSet(role.Reader), nil
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return role.Zero, status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return role.Zero, status.Error(codes.Unauthenticated, "no client certificate")
	}
	roles, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
	return roles, nil
}

var (
	readers   = role.MakeSet(role.Admin, role.Operator, role.Reader)
	operators = role.MakeSet(role.Admin, role.Operator)
	backups   = role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup)
	admins    = role.MakeSet(role.Admin)
)

// allowed lists who may call what, as Talos does; what is not listed is for admins.
var allowed = func() map[string]role.Set {
	rules := map[string]role.Set{
		"/cluster.ClusterService/HealthCheck":                   readers,
		"/inspect.InspectService/ControllerRuntimeDependencies": readers,
		"/storage.StorageService/Disks":                         readers,
		"/time.TimeService/Time":                                readers,
		"/time.TimeService/TimeCheck":                           readers,
		"/cosi.resource.State/Get":                              readers,
		"/cosi.resource.State/List":                             readers,
		"/cosi.resource.State/Watch":                            readers,
	}
	for set, methods := range map[*role.Set][]string{
		&readers: {
			"CPUInfo", "CPUFreqStats", "Containers", "DiskStats", "DiskUsage", "Dmesg", "Events", "Hostname", "ImageList", "List",
			"LoadAvg", "Logs", "LogsContainers", "Memory", "Mounts", "NetworkDeviceStats", "Netstat", "Processes", "ServiceList",
			"Stats", "SystemStat", "Version",
		},
		&operators: {
			"EtcdAlarmDisarm", "EtcdDefragment", "ImagePull", "PacketCapture", "Reboot", "Restart", "ServiceRestart",
			"ServiceStart", "ServiceStop", "Shutdown",
		},
		&backups: {"EtcdAlarmList", "EtcdMemberList", "EtcdStatus"},
	} {
		for _, m := range methods {
			rules["/machine.MachineService/"+m] = *set
		}
	}
	rules["/machine.MachineService/EtcdSnapshot"] = role.MakeSet(role.Admin, role.Operator, role.EtcdBackup)
	return rules
}()

var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized")

func authorize(c call, method string) error {
	if c.maintenance() {
		// The maintenance API decides by itself what it serves.
		return nil
	}
	set, ok := allowed[method]
	if !ok {
		set = admins
	}
	if !set.IncludesAny(c.roles) {
		return errNotAuthorized
	}
	return nil
}

// route tells which nodes a request is for; none: the machine that was called.
func (s *session) route(ctx context.Context, method string) (nodes []string, many bool, err error) {
	if s.cluster == nil {
		return nil, false, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	nodes, many = md["nodes"], len(md["nodes"]) > 0
	if !many {
		nodes = md["node"]
		if len(nodes) > 1 {
			return nil, false, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
		}
	}
	if len(nodes) == 0 {
		return nil, false, nil
	}
	if !s.machineType().IsControlPlane() {
		// A worker's certificate is good for serving only, so it cannot call others.
		if len(nodes) == 1 && nodes[0] == s.m.addr.String() {
			return nil, false, nil
		}
		if many && strings.HasPrefix(method, "/cosi.") {
			return nil, false, status.Error(codes.InvalidArgument, "one-2-many proxying is not supported for COSI methods")
		}
		return nil, false, status.Error(codes.PermissionDenied, "no request forwarding")
	}
	if many && strings.HasPrefix(method, "/cosi.") {
		return nil, false, status.Error(codes.InvalidArgument, "one-2-many proxying is not supported for COSI methods")
	}
	if slices.Contains(nodes, "") {
		return nil, false, status.Error(codes.Internal, `invalid target ""`)
	}
	return nodes, many, nil
}

// peerSession finds the running machine that a node name means, as this machine's apid would reach it.
func (s *session) peerSession(node string) (*session, error) {
	unreachable := func(why string) error {
		return status.Errorf(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp %s:50000: %s"`, node, why)
	}
	for _, m := range s.m.sim.Machines() {
		m.mu.Lock()
		t := m.session
		named := m.addr.String() == node || (t != nil && t.cluster == s.cluster && t.hostname == node)
		open := t != nil && m.reach == reachOpen && !t.ended
		up := open && t.apid && t.cluster != nil
		maintenance := open && t.cluster == nil && t.stage.String() == "maintenance"
		m.mu.Unlock()
		switch {
		case !named:
		case up && t.cluster == s.cluster:
			return t, nil
		case up || maintenance:
			return nil, status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`)
		default:
			return nil, unreachable("connect: connection refused")
		}
	}
	return nil, unreachable("connect: no route to host")
}
