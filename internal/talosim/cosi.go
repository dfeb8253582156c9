package talosim

import (
	"context"
	"fmt"
	"strings"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newMetaState registers every namespace and resource type of Talos; all machines share it, read-only.
func newMetaState() (state.CoreState, error) {
	core := inmem.NewStateWithOptions(inmem.WithHistoryInitialCapacity(8), inmem.WithHistoryMaxCapacity(16))(meta.NamespaceName)
	st := state.WrapCore(core)
	ctx := context.Background()
	namespaces := registry.NewNamespaceRegistry(st)
	types := registry.NewResourceRegistry(st)
	if err := namespaces.RegisterDefault(ctx); err != nil {
		return nil, err
	}
	if err := types.RegisterDefault(ctx); err != nil {
		return nil, err
	}
	for name, description := range talosNamespaces {
		if err := namespaces.Register(ctx, name, description); err != nil {
			return nil, err
		}
	}
	for _, r := range talosTypes() {
		if err := types.Register(ctx, r); err != nil {
			return nil, err
		}
	}
	return core, nil
}

// newResources makes the resource state of one boot, and its API with Talos' access rules.
func newResources(metaState state.CoreState) (state.State, *cosiserver.State) {
	build := inmem.NewStateWithOptions(inmem.WithHistoryInitialCapacity(4), inmem.WithHistoryMaxCapacity(64), inmem.WithHistoryGap(4))
	st := state.WrapCore(namespaced.NewState(func(ns resource.Namespace) state.CoreState {
		if ns == meta.NamespaceName {
			return metaState
		}
		return build(ns)
	}))
	return st, cosiserver.NewState(state.WrapCore(state.Filter(st, accessPolicy(st))))
}

// accessPolicy is Talos': everything can be read that is registered, what is sensitive by admins only; nothing can be
// written.
func accessPolicy(st state.State) state.FilteringRule {
	return func(ctx context.Context, access state.Access) error {
		if !access.Verb.Readonly() {
			return status.Error(codes.PermissionDenied, "write access is not allowed")
		}
		rd, err := safe.StateGet[*meta.ResourceDefinition](ctx, st,
			resource.NewMetadata(meta.NamespaceName, meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
		}
		if err != nil {
			return err
		}
		if rd.TypedSpec().Sensitivity == meta.Sensitive && !callFrom(ctx).roles.Includes(role.Admin) {
			return errNotAuthorized
		}
		_, err = safe.StateGet[*meta.Namespace](ctx, st,
			resource.NewMetadata(meta.NamespaceName, meta.NamespaceType, access.ResourceNamespace, resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Error(codes.PermissionDenied, fmt.Sprintf("namespace %q is not supported", access.ResourceNamespace))
		}
		return err
	}
}

// stateService is the COSI API; each call goes to its machine's state.
type stateService struct {
	cosiv1alpha1.UnimplementedStateServer
}

// Get implements the COSI API.
func (*stateService) Get(ctx context.Context, in *cosiv1alpha1.GetRequest) (*cosiv1alpha1.GetResponse, error) {
	return callFrom(ctx).s.cosi.Get(ctx, in)
}

// List implements the COSI API.
func (*stateService) List(in *cosiv1alpha1.ListRequest, out grpc.ServerStreamingServer[cosiv1alpha1.ListResponse]) error {
	return callFrom(out.Context()).s.cosi.List(in, out)
}

// Watch implements the COSI API.
func (*stateService) Watch(in *cosiv1alpha1.WatchRequest, out grpc.ServerStreamingServer[cosiv1alpha1.WatchResponse]) error {
	return callFrom(out.Context()).s.cosi.Watch(in, out)
}

// Create implements the COSI API, which refuses it.
func (*stateService) Create(ctx context.Context, in *cosiv1alpha1.CreateRequest) (*cosiv1alpha1.CreateResponse, error) {
	return callFrom(ctx).s.cosi.Create(ctx, in)
}

// Update implements the COSI API, which refuses it.
func (*stateService) Update(ctx context.Context, in *cosiv1alpha1.UpdateRequest) (*cosiv1alpha1.UpdateResponse, error) {
	return callFrom(ctx).s.cosi.Update(ctx, in)
}

// Destroy implements the COSI API, which refuses it.
func (*stateService) Destroy(ctx context.Context, in *cosiv1alpha1.DestroyRequest) (*cosiv1alpha1.DestroyResponse, error) {
	return callFrom(ctx).s.cosi.Destroy(ctx, in)
}
