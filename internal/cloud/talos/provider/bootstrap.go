package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

const bootstrapID = "machine_bootstrap"

// bootstrapResource is talos_machine_bootstrap. It acts once, at creation.
type bootstrapResource struct{ failed *unconfigured }

var (
	_ resource.ResourceWithModifyPlan  = (*bootstrapResource)(nil)
	_ resource.ResourceWithImportState = (*bootstrapResource)(nil)
)

type bootstrapModel struct {
	ID                  types.String   `tfsdk:"id"`
	Node                types.String   `tfsdk:"node"`
	Endpoint            types.String   `tfsdk:"endpoint"`
	ClientConfiguration types.Object   `tfsdk:"client_configuration"`
	Timeouts            timeouts.Value `tfsdk:"timeouts"`
}

func (r *bootstrapResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_machine_bootstrap"
}

func (r *bootstrapResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Version:     1,
		Description: "Starts a cluster's etcd on one control-plane machine, once. A cluster that was bootstrapped before is taken as it is.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, Description: "Always machine_bootstrap",
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
			"node":                 schema.StringAttribute{Required: true, Description: "Address of the control-plane machine: host, or host:port"},
			"endpoint":             schema.StringAttribute{Optional: true, Computed: true, Description: "Where the machine's API is reached, when that is not at node"},
			"client_configuration": clientConfigurationArgument(),
			"timeouts":             timeouts.Attributes(ctx, timeouts.Opts{Create: true}),
		},
	}
}

func (r *bootstrapResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	planEndpoint(ctx, req, resp)
}

// planEndpoint makes the node the endpoint where none is given.
func planEndpoint(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var endpoint, node types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("endpoint"), &endpoint)...)
	resp.Diagnostics.Append(req.Plan.GetAttribute(ctx, path.Root("node"), &node)...)
	if endpoint.IsNull() && !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("endpoint"), node)...)
	}
}

func (r *bootstrapResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan bootstrapModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Create(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	m, ok := openMachine(ctx, plan.Node, plan.Endpoint, plan.ClientConfiguration, &resp.Diagnostics)
	if !ok || resp.Diagnostics.HasError() {
		return
	}
	if err := m.bootstrap(ctx, limit, r.failed); err != nil {
		resp.Diagnostics.AddError(explain(m, bootstrapping, err, hideKey(m)))
		return
	}
	plan.ID = types.StringValue(bootstrapID)
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

func (r *bootstrapResource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update records new arguments: bootstrapping happens once.
func (r *bootstrapResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan bootstrapModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Delete forgets: etcd goes with its machines.
func (r *bootstrapResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {
}

// ImportState takes any id, for a cluster that was bootstrapped by other means.
func (r *bootstrapResource) ImportState(ctx context.Context, _ resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), bootstrapID)...)
}
