package api

import "freehold.dev/freehold/internal/kernel/rest"

func (s *service) registerEvents(a *rest.API) {}
