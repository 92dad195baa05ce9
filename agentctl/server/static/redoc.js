// Shows the OpenAPI document with ReDoc. Its styles carry the nonce that this script was given.
Redoc.init(
  "openapi.json",
  { nativeScrollbars: true, nonce: document.currentScript.nonce },
  document.getElementById("page"),
);
