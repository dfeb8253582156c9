package api

import (
	"context"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
)

const providersPath = "/api/v1/providers"

// ProviderPath names a provider module.
type ProviderPath struct {
	Type string `path:"type" doc:"The module's type, such as metal."`
}

func (s *service) registerProviders(a *rest.API) {
	op := operations{tag: "Providers"}
	rest.Register(a, op.get(providersPath, "list-providers", "List the provider modules"), s.listProviders)
	rest.Register(a, op.get(providersPath+"/{type}", "get-provider", "Get a provider module"), s.getProvider)
}

func (s *service) listProviders(ctx context.Context, in *rest.ListInput) (*listOutput[client.Provider], error) {
	return list(ctx, s, cloud.Providers, store.Query{}, in, wireProvider, nil)
}

func (s *service) getProvider(ctx context.Context, in *ProviderPath) (*output[client.Provider], error) {
	p, err := get(ctx, s, cloud.Providers, nil, "provider", in.Type, in.Type)
	if err != nil {
		return nil, err
	}
	return &output[client.Provider]{Body: wireProvider(p)}, nil
}

// PublishProviders makes the stored Provider objects those of this build: the server calls it when it starts.
func PublishProviders(ctx context.Context, st store.Store, modules []*cloud.Provider) error {
	return st.Update(ctx, func(tx store.Tx) error {
		stored, _, err := cloud.Providers.List(tx, store.Query{})
		if err != nil {
			return err
		}
		old := map[string]*cloud.Provider{}
		for _, p := range stored {
			old[p.Name] = p
		}
		for _, m := range modules {
			p, known := old[m.Name]
			delete(old, m.Name)
			if !known {
				fresh := *m
				if err := cloud.Providers.Create(tx, &fresh); err != nil {
					return err
				}
				continue
			}
			p.Spec, p.Status = m.Spec, m.Status
			if err := cloud.Providers.Update(tx, p); err != nil {
				return err
			}
		}
		for name, p := range old {
			if _, err := tx.Delete(cloud.Providers.Kind.Name, name, p.Revision); err != nil {
				return err
			}
		}
		return nil
	})
}
