package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"sigs.k8s.io/yaml"
)

// kubeconfigResource is talos_cluster_kubeconfig.
type kubeconfigResource struct{}

var _ resource.ResourceWithModifyPlan = (*kubeconfigResource)(nil)

type kubeconfigModel struct {
	ID                  types.String   `tfsdk:"id"`
	Node                types.String   `tfsdk:"node"`
	Endpoint            types.String   `tfsdk:"endpoint"`
	ClientConfiguration types.Object   `tfsdk:"client_configuration"`
	Raw                 types.String   `tfsdk:"kubeconfig_raw"`
	Kubernetes          types.Object   `tfsdk:"kubernetes_client_configuration"`
	RenewalDuration     types.String   `tfsdk:"certificate_renewal_duration"`
	Timeouts            timeouts.Value `tfsdk:"timeouts"`
}

var kubernetesTypes = map[string]attr.Type{
	"host":               types.StringType,
	"ca_certificate":     types.StringType,
	"client_certificate": types.StringType,
	"client_key":         types.StringType,
}

const (
	kubeHostDescription = "URL of the Kubernetes API"
	kubeCADescription   = "PEM certificate of the authority that the Kubernetes API is verified with, in base64"
)

func (r *kubeconfigResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_cluster_kubeconfig"
}

func (r *kubeconfigResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	keep := []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
	resp.Schema = schema.Schema{
		Version:     1,
		Description: "Gets an administrator's kubeconfig from a control-plane machine.",
		Attributes: map[string]schema.Attribute{
			"id":                   schema.StringAttribute{Computed: true, PlanModifiers: keep, Description: "The cluster's name"},
			"node":                 schema.StringAttribute{Required: true, Description: "Address of a control-plane machine: host, or host:port"},
			"endpoint":             schema.StringAttribute{Optional: true, Computed: true, Description: "Where the machine's API is reached, when that is not at node"},
			"client_configuration": clientConfigurationArgument(),
			"kubeconfig_raw":       schema.StringAttribute{Computed: true, Sensitive: true, PlanModifiers: keep, Description: "The kubeconfig, YAML"},
			"kubernetes_client_configuration": schema.SingleNestedAttribute{
				Computed: true, PlanModifiers: []planmodifier.Object{objectplanmodifier.UseStateForUnknown()},
				Description: "The kubeconfig's parts, for other providers",
				Attributes: map[string]schema.Attribute{
					"host":               schema.StringAttribute{Computed: true, Description: kubeHostDescription},
					"ca_certificate":     schema.StringAttribute{Computed: true, Description: kubeCADescription},
					"client_certificate": schema.StringAttribute{Computed: true, Description: certDescription},
					"client_key":         schema.StringAttribute{Computed: true, Sensitive: true, Description: keyDescription},
				},
			},
			"certificate_renewal_duration": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString("720h"),
				Validators:  []validator.String{duration{}},
				Description: "How long before its end the client certificate is made anew, as a duration. Default 720h"},
			"timeouts": timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true}),
		},
	}
}

func (r *kubeconfigResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	planEndpoint(ctx, req, resp)
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() || resp.Diagnostics.HasError() {
		return
	}
	var plan, state kubeconfigModel
	resp.Diagnostics.Append(resp.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || plan.RenewalDuration.IsUnknown() {
		return
	}
	before, _ := time.ParseDuration(plan.RenewalDuration.ValueString())
	cert, _ := state.Kubernetes.Attributes()["client_certificate"].(types.String)
	if certificateEnd(cert.ValueString()).Before(time.Now().Add(before)) {
		plan.Raw, plan.Kubernetes = types.StringUnknown(), types.ObjectUnknown(kubernetesTypes)
		resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
	}
}

func (r *kubeconfigResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan kubeconfigModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Create(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !plan.fetch(ctx, limit, &resp.Diagnostics) {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

func (m *kubeconfigModel) fetch(ctx context.Context, limit time.Duration, diags *diag.Diagnostics) bool {
	got, ok := fetchKubeconfig(ctx, m.Node, m.Endpoint, m.ClientConfiguration, limit, diags)
	if !ok {
		return false
	}
	m.ID, m.Raw, m.Kubernetes = got.cluster, got.raw, got.parts
	return true
}

func (r *kubeconfigResource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update fetches anew when that was planned; other arguments are recorded.
func (r *kubeconfigResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan kubeconfigModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	limit, diags := plan.Timeouts.Update(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	id := plan.ID
	if plan.Raw.IsUnknown() {
		if !plan.fetch(ctx, limit, &resp.Diagnostics) {
			return
		}
		plan.ID = id
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Delete forgets: the certificate ends by itself.
func (r *kubeconfigResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {
}

// fetched is a kubeconfig as attributes.
type fetched struct {
	cluster, raw types.String
	parts        types.Object
}

func fetchKubeconfig(ctx context.Context, node, endpoint types.String, creds types.Object, limit time.Duration, diags *diag.Diagnostics) (fetched, bool) {
	m, ok := openMachine(ctx, node, endpoint, creds, diags)
	if !ok {
		return fetched{}, false
	}
	text, err := m.kubeconfig(ctx, limit)
	if err != nil {
		diags.AddError(explain(m, asking, err, hideKey(m)))
		return fetched{}, false
	}
	got, err := splitKubeconfig(text)
	if err != nil {
		diags.AddError(m.node+" gave no usable kubeconfig", sentence(err))
		return fetched{}, false
	}
	return got, true
}

// splitKubeconfig takes the current context of a kubeconfig apart.
func splitKubeconfig(text []byte) (fetched, error) {
	var k struct {
		CurrentContext string `json:"current-context"`
		Contexts       []struct {
			Name    string `json:"name"`
			Context struct {
				Cluster string `json:"cluster"`
				User    string `json:"user"`
			} `json:"context"`
		} `json:"contexts"`
		Clusters []struct {
			Name    string `json:"name"`
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			Name string `json:"name"`
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return fetched{}, fmt.Errorf("the answer is not a kubeconfig")
	}
	for _, c := range k.Contexts {
		if c.Name != k.CurrentContext {
			continue
		}
		parts := map[string]attr.Value{}
		for _, cluster := range k.Clusters {
			if cluster.Name == c.Context.Cluster {
				parts["host"], parts["ca_certificate"] = types.StringValue(cluster.Cluster.Server), encodeBase64(cluster.Cluster.CA)
			}
		}
		for _, user := range k.Users {
			if user.Name == c.Context.User {
				parts["client_certificate"], parts["client_key"] = encodeBase64(user.User.Cert), encodeBase64(user.User.Key)
			}
		}
		if len(parts) == len(kubernetesTypes) {
			return fetched{
				cluster: types.StringValue(c.Context.Cluster),
				raw:     types.StringValue(string(text)),
				parts:   types.ObjectValueMust(kubernetesTypes, parts),
			}, nil
		}
	}
	return fetched{}, fmt.Errorf("the kubeconfig has no complete current context")
}

// duration validates durations.
type duration struct{}

func (duration) Description(context.Context) string { return "a duration such as 720h" }

func (d duration) MarkdownDescription(ctx context.Context) string { return d.Description(ctx) }

func (duration) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if !known(req.ConfigValue) {
		return
	}
	if d, err := time.ParseDuration(req.ConfigValue.ValueString()); err != nil || d < 0 {
		resp.Diagnostics.AddAttributeError(req.Path, "Not a duration", fmt.Sprintf("%s must be a duration such as 720h.", req.Path))
	}
}
