package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"freehold.dev/freehold/internal/cloud/talos"
)

// defaultTimeout is how long each operation on a machine may take unless timeouts says otherwise.
const defaultTimeout = 10 * time.Minute

// applyResource is talos_machine_configuration_apply.
type applyResource struct{ failed *unconfigured }

var (
	_ resource.ResourceWithModifyPlan     = (*applyResource)(nil)
	_ resource.ResourceWithValidateConfig = (*applyResource)(nil)
)

type applyModel struct {
	ID                        types.String   `tfsdk:"id"`
	ApplyMode                 types.String   `tfsdk:"apply_mode"`
	ResolvedApplyMode         types.String   `tfsdk:"resolved_apply_mode"`
	Node                      types.String   `tfsdk:"node"`
	Endpoint                  types.String   `tfsdk:"endpoint"`
	ClientConfiguration       types.Object   `tfsdk:"client_configuration"`
	MachineConfigurationInput types.String   `tfsdk:"machine_configuration_input"`
	OnDestroy                 types.Object   `tfsdk:"on_destroy"`
	MachineConfiguration      types.String   `tfsdk:"machine_configuration"`
	ConfigPatches             types.List     `tfsdk:"config_patches"`
	Timeouts                  timeouts.Value `tfsdk:"timeouts"`
}

type onDestroyModel struct {
	Reset    types.Bool `tfsdk:"reset"`
	Graceful types.Bool `tfsdk:"graceful"`
	Reboot   types.Bool `tfsdk:"reboot"`
}

func (r *applyResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_machine_configuration_apply"
}

func (r *applyResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	keep := []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
	option := func(def bool, description string) schema.BoolAttribute {
		return schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(def), Description: description}
	}
	resp.Schema = schema.Schema{
		Version:     1,
		Description: "Applies a machine configuration to a machine, waiting for it to boot.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, PlanModifiers: keep, Description: "Always machine_configuration_apply"},
			"apply_mode": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(modeAuto),
				Validators: []validator.String{stringvalidator.OneOf(modeAuto, modeReboot, modeNoReboot, modeStaged, modeStagedIfNeedingReboot)},
				Description: "How the machine takes a change: auto (default), reboot, no_reboot, staged (at its next reboot), or " +
					"staged_if_needing_reboot (at once, unless that needs a reboot)",
			},
			"resolved_apply_mode": schema.StringAttribute{Computed: true, Description: "The mode that was used in the end"},
			"node":                schema.StringAttribute{Required: true, Description: "Address of the machine: host, or host:port"},
			"endpoint": schema.StringAttribute{Optional: true, Computed: true,
				Description: "Where the machine's API is reached, when that is not at node: its address from here, or another machine of the cluster that forwards"},
			"client_configuration": clientConfigurationArgument(),
			"machine_configuration_input": schema.StringAttribute{Required: true, Sensitive: true,
				Description: "The configuration, as talos_machine_configuration gives it"},
			"on_destroy": schema.SingleNestedAttribute{
				Optional:    true,
				Description: "What becomes of the machine on destroy; it must have been applied before a destroy can honour it",
				Attributes: map[string]schema.Attribute{
					"reset":    option(false, "Wipe the machine's STATE and EPHEMERAL partitions. Default false: the machine is left alone"),
					"graceful": option(true, "Drain the node and leave etcd first. Default true"),
					"reboot":   option(false, "Reboot into maintenance mode afterwards, instead of halting. Default false"),
				},
			},
			"machine_configuration": schema.StringAttribute{Computed: true, Sensitive: true, PlanModifiers: keep,
				Description: "The configuration after the patches"},
			"config_patches": schema.ListAttribute{Optional: true, ElementType: types.StringType,
				Description: "Patches for this machine alone: partial documents (strategic merge) or JSON6902 operations, YAML or JSON"},
			"timeouts": timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

// ValidateConfig finds broken patches before anything is planned.
func (r *applyResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var patches types.List
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("config_patches"), &patches)...)
	checkPatches(patches, &resp.Diagnostics)
}

// checkPatches checks those patches of a list that are known.
func checkPatches(list types.List, diags *diag.Diagnostics) {
	for i, element := range list.Elements() {
		text, ok := element.(types.String)
		if !ok || text.IsUnknown() || text.IsNull() {
			continue
		}
		if err := talos.CheckPatch(text.ValueString()); err != nil {
			diags.AddAttributeError(path.Root("config_patches").AtListIndex(i), "Config patch not usable", sentence(err))
		}
	}
}

func (r *applyResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var config, plan applyModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	var state *applyModel
	if !req.State.Raw.IsNull() {
		state = new(applyModel)
		resp.Diagnostics.Append(req.State.Get(ctx, state)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	if config.Endpoint.IsNull() {
		plan.Endpoint = plan.Node
	}
	plan.MachineConfiguration = types.StringUnknown()
	if patches, known := stringList(plan.ConfigPatches); known && !plan.MachineConfigurationInput.IsUnknown() {
		text, err := talos.Patch([]byte(plan.MachineConfigurationInput.ValueString()), patches)
		if err != nil {
			addConfigError(&resp.Diagnostics, err)
			return
		}
		plan.MachineConfiguration = types.StringValue(string(text))
	}
	switch {
	case plan.ApplyMode.ValueString() != modeStagedIfNeedingReboot:
		plan.ResolvedApplyMode = plan.ApplyMode
	case state != nil && !delivers(*state, plan):
		plan.ResolvedApplyMode = state.ResolvedApplyMode
	default:
		plan.ResolvedApplyMode = types.StringUnknown()
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
}

// addConfigError blames the patch or the configuration.
func addConfigError(diags *diag.Diagnostics, err error) {
	var at *talos.PatchError
	if errors.As(err, &at) {
		diags.AddAttributeError(path.Root("config_patches").AtListIndex(at.Index), "Config patch not usable", sentence(at.Err))
		return
	}
	diags.AddError("Machine configuration not usable", sentence(err))
}

// delivers tells whether going from one to the other means talking to the machine.
func delivers(from, to applyModel) bool {
	return !from.MachineConfiguration.Equal(to.MachineConfiguration) || !from.Node.Equal(to.Node) ||
		!from.Endpoint.Equal(to.Endpoint) || !from.ApplyMode.Equal(to.ApplyMode)
}

func (r *applyResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan applyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Create(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !r.deliver(ctx, &plan, limit, &resp.Diagnostics) {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Read changes nothing: whether a machine still is as declared is for its status to tell, and a machine that is off must
// not hold up the plan for all the others.
func (r *applyResource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

func (r *applyResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state applyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Update(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || delivers(state, plan) && !r.deliver(ctx, &plan, limit, &resp.Diagnostics) {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// deliver applies the planned configuration and completes the plan's computed values.
func (r *applyResource) deliver(ctx context.Context, plan *applyModel, limit time.Duration, diags *diag.Diagnostics) bool {
	m, ok := plan.machine(ctx, diags)
	if !ok {
		return false
	}
	config := []byte(plan.MachineConfiguration.ValueString())
	r.failed.set(m, false)
	result, err := m.apply(ctx, limit, config, plan.ApplyMode.ValueString())
	r.failed.set(m, err != nil)
	redactor := func() *talos.Redactor { return talos.NewRedactor(config, string(m.creds.key)) }
	if err != nil {
		summary, detail := explain(m, applying, err, redactor().Redact)
		diags.AddError(summary, detail)
		return false
	}
	for _, warning := range result.warnings {
		diags.AddWarning(plan.Node.ValueString()+" took its configuration with a warning", redactor().Redact(warning))
	}
	plan.ID = types.StringValue("machine_configuration_apply")
	plan.ResolvedApplyMode = types.StringValue(result.mode)
	return true
}

func (a *applyModel) machine(ctx context.Context, diags *diag.Diagnostics) (*machine, bool) {
	return openMachine(ctx, a.Node, a.Endpoint, a.ClientConfiguration, diags)
}

func openMachine(ctx context.Context, node, endpoint types.String, clientConfiguration types.Object, diags *diag.Diagnostics) (*machine, bool) {
	if node.ValueString() == "" {
		diags.AddAttributeError(path.Root("node"), "No machine named", "node must be the address of a machine.")
		return nil, false
	}
	creds, ok := readCredentials(ctx, clientConfiguration, diags)
	if !ok {
		return nil, false
	}
	m, err := newMachine(node.ValueString(), endpoint.ValueString(), creds)
	if err != nil {
		diags.AddAttributeError(path.Root("client_configuration"), "Client configuration not usable", sentence(err))
		return nil, false
	}
	return m, true
}

func (r *applyResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state applyModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || state.OnDestroy.IsNull() {
		return
	}
	var wish onDestroyModel
	resp.Diagnostics.Append(state.OnDestroy.As(ctx, &wish, basetypes.ObjectAsOptions{})...)
	if resp.Diagnostics.HasError() || !wish.Reset.ValueBool() {
		return
	}
	limit, diags := state.Timeouts.Delete(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	m, ok := state.machine(ctx, &resp.Diagnostics)
	if !ok || resp.Diagnostics.HasError() {
		return
	}
	err := m.reset(ctx, limit, wish.Graceful.ValueBool(), wish.Reboot.ValueBool())
	switch {
	case err == nil:
	case errors.Is(err, errForeign):
		resp.Diagnostics.AddWarning(m.node+" belongs to another cluster now",
			fmt.Sprintf("The machine at %s was not reset: its certificate does not come from this cluster's authority. It is forgotten here.", m.address))
	default:
		redact := talos.NewRedactor([]byte(state.MachineConfiguration.ValueString()), string(m.creds.key)).Redact
		summary, detail := explain(m, resetting, err, redact)
		detail += "\n\nIf the machine is gone for good, forget it with `tofu state rm`."
		resp.Diagnostics.AddError(summary, detail)
	}
}
