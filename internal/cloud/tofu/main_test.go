package tofu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// TestMain lets the test binary be the supervisor, as the server's binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "tofu-run" {
		os.Exit(RunMain(context.Background(), os.Args[2:], worldProviders))
	}
	os.Exit(m.Run())
}

var worldProviders = Providers{
	"registry.opentofu.org/freehold/world": func() provider.Provider { return &worldProvider{} },
}

// worldProvider makes things in a folder, which stands for the world: what tofu did can be seen there whatever
// happened to its state.
type worldProvider struct{}

func (*worldProvider) Metadata(_ context.Context, _ provider.MetadataRequest, r *provider.MetadataResponse) {
	r.TypeName = "world"
}
func (*worldProvider) Schema(context.Context, provider.SchemaRequest, *provider.SchemaResponse) {}
func (*worldProvider) Configure(context.Context, provider.ConfigureRequest, *provider.ConfigureResponse) {
}
func (*worldProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }
func (*worldProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{func() resource.Resource { return &thing{} }}
}

type thing struct{}

type thingModel struct {
	Path   types.String `tfsdk:"path"`
	Text   types.String `tfsdk:"text"`
	Kind   types.String `tfsdk:"kind"`
	Delay  types.Int64  `tfsdk:"delay_ms"`
	Hang   types.Bool   `tfsdk:"hang"`
	Fail   types.String `tfsdk:"fail"`
	Secret types.String `tfsdk:"secret"`
}

func (*thing) Metadata(_ context.Context, _ resource.MetadataRequest, r *resource.MetadataResponse) {
	r.TypeName = "world_thing"
}

func (*thing) Schema(_ context.Context, _ resource.SchemaRequest, r *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	r.Schema = schema.Schema{Attributes: map[string]schema.Attribute{
		"path":     schema.StringAttribute{Required: true, PlanModifiers: replace},
		"kind":     schema.StringAttribute{Optional: true, PlanModifiers: replace},
		"text":     schema.StringAttribute{Optional: true},
		"delay_ms": schema.Int64Attribute{Optional: true},
		"hang":     schema.BoolAttribute{Optional: true},
		"fail":     schema.StringAttribute{Optional: true},
		"secret":   schema.StringAttribute{Optional: true, Sensitive: true},
	}}
}

func (*thing) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m thingModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	if m.Hang.ValueBool() {
		_ = os.WriteFile(m.Path.ValueString()+".hangs", nil, 0o600)
		select {} // not even cancellation ends it
	}
	if f := m.Fail.ValueString(); f != "" {
		resp.Diagnostics.AddError("The thing refuses to be made", f)
		return
	}
	if err := m.make(ctx); err != nil {
		resp.Diagnostics.AddError("The thing was not made", err.Error())
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}

func (m *thingModel) make(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(m.Delay.ValueInt64()) * time.Millisecond):
	}
	path := m.Path.ValueString()
	log, err := os.OpenFile(filepath.Join(filepath.Dir(path), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "make %s\n", filepath.Base(path))
	return os.WriteFile(path, []byte(m.Text.ValueString()), 0o600)
}

func (*thing) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

func (*thing) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m thingModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	if err := m.make(ctx); err != nil {
		resp.Diagnostics.AddError("The thing was not changed", err.Error())
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}

func (*thing) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m thingModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if err := os.Remove(m.Path.ValueString()); err != nil && !errors.Is(err, os.ErrNotExist) {
		resp.Diagnostics.AddError("The thing stays", err.Error())
	}
}
