package provider

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"go.yaml.in/yaml/v4"

	"freehold.dev/freehold/internal/cloud/talos"
)

// renewBefore is how long before its end the client certificate is made anew.
const renewBefore = 30 * 24 * time.Hour

// secretsResource is talos_machine_secrets.
type secretsResource struct{}

var (
	_ resource.ResourceWithModifyPlan  = (*secretsResource)(nil)
	_ resource.ResourceWithImportState = (*secretsResource)(nil)
)

type secretsModel struct {
	ID                  types.String `tfsdk:"id"`
	TalosVersion        types.String `tfsdk:"talos_version"`
	MachineSecrets      types.Object `tfsdk:"machine_secrets"`
	ClientConfiguration types.Object `tfsdk:"client_configuration"`
}

func (r *secretsResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_machine_secrets"
}

func (r *secretsResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Version:     1,
		Description: "Makes the root secrets of a Talos cluster, and an administrator's credentials for its machines.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, Description: "Always machine_secrets",
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
			"talos_version": schema.StringAttribute{Optional: true, Computed: true,
				Description:   "The Talos version that the secrets are made for, such as v1.12 or 1.12.6. Default: the newest that is known",
				Validators:    []validator.String{talosVersionKnown{}},
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
			"machine_secrets": machineSecretsAttribute(),
			"client_configuration": schema.SingleNestedAttribute{
				Computed: true, PlanModifiers: []planmodifier.Object{objectplanmodifier.UseStateForUnknown()},
				Description: "An administrator's credentials for the machines' Talos API; made anew a month before they end",
				Attributes: map[string]schema.Attribute{
					"ca_certificate":     schema.StringAttribute{Computed: true, Description: caDescription},
					"client_certificate": schema.StringAttribute{Computed: true, Description: certDescription},
					"client_key":         schema.StringAttribute{Computed: true, Sensitive: true, Description: keyDescription},
				},
			},
		},
	}
}

func (r *secretsResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var plan secretsModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	var asked types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("talos_version"), &asked)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if asked.IsNull() && plan.TalosVersion.IsUnknown() {
		plan.TalosVersion = types.StringValue(talos.DefaultTalosVersion)
	}
	if !req.State.Raw.IsNull() {
		var state secretsModel
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		if resp.Diagnostics.HasError() {
			return
		}
		if known(plan.TalosVersion) && known(state.TalosVersion) &&
			talos.UsesSecretbox(plan.TalosVersion.ValueString()) != talos.UsesSecretbox(state.TalosVersion.ValueString()) {
			resp.Diagnostics.AddAttributeError(path.Root("talos_version"), "Secrets cannot change their encryption",
				fmt.Sprintf("The secrets were made for Talos %s, and Talos 1.3 changed how the cluster encrypts its own. Leave talos_version here as it was; "+
					"the machines can run a newer Talos all the same.", state.TalosVersion.ValueString()))
			return
		}
		if endsSoon(ctx, state.ClientConfiguration, time.Now()) {
			plan.ClientConfiguration = types.ObjectUnknown(clientConfigurationTypes)
		}
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
}

func known(s types.String) bool { return !s.IsNull() && !s.IsUnknown() }

// endsSoon tells whether the client certificate ends within the renewal time; one that cannot be read counts as ended.
func endsSoon(_ context.Context, object types.Object, now time.Time) bool {
	text, ok := object.Attributes()["client_certificate"].(types.String)
	if !ok {
		return true
	}
	return certificateEnd(text.ValueString()).Before(now.Add(renewBefore))
}

// certificateEnd is when a PEM certificate in base64 ends; the zero time when it cannot be read.
func certificateEnd(text string) time.Time {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return time.Time{}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}

func (r *secretsResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan secretsModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	s, err := talos.NewSecrets(plan.TalosVersion.ValueString())
	if err != nil {
		resp.Diagnostics.AddError("Secrets cannot be made", sentence(err))
		return
	}
	if err := plan.fill(s); err != nil {
		resp.Diagnostics.AddError("Secrets cannot be made", sentence(err))
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// fill completes the model from a cluster's secrets, with fresh credentials.
func (m *secretsModel) fill(s *talos.Secrets) error {
	m.ID = types.StringValue("machine_secrets")
	m.MachineSecrets = machineSecretsValue(s.MachineSecrets())
	return m.fillCredentials(s)
}

func (m *secretsModel) fillCredentials(s *talos.Secrets) error {
	ca, cert, key, err := s.ClientCredentials(constants.TalosAPIDefaultCertificateValidityDuration)
	if err != nil {
		return err
	}
	m.ClientConfiguration = types.ObjectValueMust(clientConfigurationTypes, map[string]attr.Value{
		"ca_certificate": encodeBase64(ca), "client_certificate": encodeBase64(cert), "client_key": encodeBase64(key),
	})
	return nil
}

func (r *secretsResource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update keeps the secrets: it renews the client certificate where that was planned.
func (r *secretsResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state secretsModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	plan.ID, plan.MachineSecrets = state.ID, state.MachineSecrets
	if plan.ClientConfiguration.IsUnknown() {
		s, ok := readMachineSecrets(ctx, state.MachineSecrets, &resp.Diagnostics)
		if !ok {
			return
		}
		if err := plan.fillCredentials(s); err != nil {
			resp.Diagnostics.AddError("Client certificate cannot be renewed", sentence(err))
			return
		}
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Delete forgets the secrets; with the state, they are gone.
func (r *secretsResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}

// ImportState reads the file that the id names, as `talosctl gen secrets` writes it.
func (r *secretsResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	const summary = "Secrets cannot be imported"
	text, err := os.ReadFile(req.ID)
	if err != nil {
		resp.Diagnostics.AddError(summary, fmt.Sprintf("The id must be the path of a file of secrets, as `talosctl gen secrets` writes it: %v.", err))
		return
	}
	bundle := &secrets.Bundle{}
	if err := yaml.Unmarshal(text, bundle); err != nil {
		resp.Diagnostics.AddError(summary, fmt.Sprintf("%s is not a file of secrets as `talosctl gen secrets` writes it.", req.ID))
		return
	}
	s, err := talos.FromBundle(bundle)
	if err != nil {
		resp.Diagnostics.AddError(summary, sentence(err))
		return
	}
	model := secretsModel{TalosVersion: types.StringValue("v1.3")}
	if bundle.Secrets.AESCBCEncryptionSecret != "" {
		model.TalosVersion = types.StringValue("v1.2")
	}
	if err := model.fill(s); err != nil {
		resp.Diagnostics.AddError(summary, sentence(err))
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &model)...)
}

// talosVersionKnown validates talos_version.
type talosVersionKnown struct{}

func (talosVersionKnown) Description(context.Context) string {
	return "a Talos version that is known here, such as v1.12 or 1.12.6"
}

func (v talosVersionKnown) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (talosVersionKnown) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if !known(req.ConfigValue) {
		return
	}
	err := talos.CheckContract(req.ConfigValue.ValueString())
	if req.ConfigValue.ValueString() == "" {
		err = errors.New("talos_version is empty: leave it out, or write it like v1.12")
	}
	if err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Talos version not usable", sentence(err))
	}
}
