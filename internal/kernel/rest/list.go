package rest

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
)

// Page is embedded in the input of lists: which part of the list is wanted.
type Page struct {
	Offset int `query:"offset" minimum:"0" default:"0" doc:"How many of the matching objects to skip."`
	Limit  int `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"How many objects to answer at most."`
}

// Selectors is embedded in the input of lists and watches that select by labels.
type Selectors struct {
	LabelSelector []string `query:"labelSelector,explode" doc:"A label selector in the Kubernetes grammar; several must all match."`
}

// Selector parses the label selectors and joins them. Without any it selects everything. The error is a *Problem
// that names the parameter.
func (s Selectors) Selector() (labels.Selector, error) {
	joined := labels.Everything()
	var causes []Cause
	for i, text := range s.LabelSelector {
		parsed, err := labels.Parse(text)
		if err != nil {
			field := "labelSelector"
			if len(s.LabelSelector) > 1 {
				field = fmt.Sprintf("labelSelector[%d]", i)
			}
			causes = append(causes, Cause{Field: field, Message: err.Error()})
			continue
		}
		requirements, _ := parsed.Requirements()
		joined = joined.Add(requirements...)
	}
	if p := Invalid(causes...); p != nil {
		return nil, p
	}
	return joined, nil
}

// ListInput is the usual input of a list: a page and label selectors.
type ListInput struct {
	Page
	Selectors
}

// MaxPageSize is the largest page of a list that is read by page number.
const MaxPageSize = 100

// Numbered is embedded in the input of lists that are read by page number.
type Numbered struct {
	Page     int `query:"page" minimum:"1" maximum:"1000000000" default:"1" doc:"Which page, from 1 on."`
	PageSize int `query:"page_size" minimum:"1" default:"50" doc:"How many items a page has; a larger number than 100 is taken as 100."`
}

// Bounds are how many items to skip and how many to answer. A page is no larger than [MaxPageSize], whatever was asked.
func (n Numbered) Bounds() (offset, limit int) {
	limit = min(n.PageSize, MaxPageSize)
	return (n.Page - 1) * limit, limit
}
