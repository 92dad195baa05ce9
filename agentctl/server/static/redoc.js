// Shows the OpenAPI document with ReDoc.
Redoc.init("openapi.json", { nativeScrollbars: true }, document.getElementById("page"));
