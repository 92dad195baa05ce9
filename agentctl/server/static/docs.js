// Shows the OpenAPI document with Swagger UI. Every address is relative to the page, so that it
// works under any base path.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  validatorUrl: null,
  oauth2RedirectUrl: new URL("docs/oauth2-redirect", window.location.href).href,
});
