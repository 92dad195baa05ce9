// An identity provider for a trial of the sign-in. NOT FOR PRODUCTION: everybody knows its passwords,
// it speaks plain HTTP, and its keys and sessions end with the process.
//
// Argument: the folder of its packages, by default its own. Settings, all of them optional:
//   SIGN_IN_PORT          9400
//   SIGN_IN_SERVER        URL of the agentctl server: http://127.0.0.1:7777
//   SIGN_IN_LISTEN        127.0.0.1
//   SIGN_IN_ALLOW_REMOTE  1 to listen on an address that is not of this machine alone
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath, pathToFileURL } from 'node:url';

const USERS = {
  user: { password: 'user', roles: ['user'] },
  admin: { password: 'admin', roles: ['admin'] },
};
const WARNING = 'Not for production: everybody knows the passwords of this identity provider.';
const { SIGN_IN_PORT: port = '9400', SIGN_IN_LISTEN: listen = '127.0.0.1' } = process.env;
const { SIGN_IN_SERVER: target = 'http://127.0.0.1:7777', SIGN_IN_ALLOW_REMOTE: remote } = process.env;

if (!['127.0.0.1', '::1', 'localhost'].includes(listen) && remote !== '1') {
  console.error(`error: SIGN_IN_LISTEN is ${listen}, which other machines may reach\n`
    + `cause: ${WARNING}\nhint: unset it, or set SIGN_IN_ALLOW_REMOTE=1 inside of a container`);
  process.exit(2);
}

const folder = process.argv[2] ?? fileURLToPath(new URL('.', import.meta.url));
const require = createRequire(join(folder, 'package.json'));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'trial', use: 'sig', alg: 'RS256' };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  jwks: { keys: [key] },
  cookies: { keys: [randomBytes(16).toString('hex')] },
  clients: [{
    client_id: 'console',
    token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token'],
    redirect_uris: [`${target}/console`, `${target}/chat`],
  }],
  features: {
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:agentctl',
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        audience: 'agentctl', scope: '', accessTokenFormat: 'jwt', accessTokenTTL: 600, jwt: { sign: { alg: 'RS256' } },
      }),
    },
    revocation: { enabled: true },
  },
  pkce: { required: () => true },
  issueRefreshToken: () => true,
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (_, token) => ({ roles: USERS[token.accountId].roles }),
  // A person who signs in here agrees: there is one client.
  loadExistingGrant: async ({ oidc }) => {
    const grant = new provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
    grant.addOIDCScope('openid offline_access');
    await grant.save();
    return grant;
  },
  renderError: (context, { error, error_description: detail }) => {
    context.type = 'html';
    context.body = page('The sign-in failed', `<p role="alert">${escape(detail ?? error)}</p>`);
  },
});

const escape = (value) => String(value).replace(/[&<>"]/g, (each) => `&#${each.charCodeAt(0)};`);

const page = (title, body) => `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { background: light-dark(#fff, #14171c); color: light-dark(#1a2029, #e5e9f0); }
  main { max-width: 26rem; margin: 12vh auto; padding: 0 1rem; } h1 { font-size: 1.4rem; }
  label { display: block; margin-bottom: 1rem; } input { width: 100%; } input, button { box-sizing: border-box; min-height: 44px; font: inherit; padding: 0 1rem; }
  [role=alert] { color: light-dark(#b3261e, #ff9489); } .warning { border-left: 4px solid; padding-left: .8rem; }
</style></head><body><main><h1>${title}</h1><p class="warning">${WARNING}</p>${body}</main></body></html>`;

const form = (failure) => page('Sign in to the trial', `<form method="post">
${failure ? `<p role="alert">${failure}</p>` : ''}
<label>Name <input name="name" required autofocus autocomplete="username"></label>
<label>Password <input name="password" type="password" required autocomplete="current-password"></label>
<button>Sign in</button> <button name="cancel" value="1" formnovalidate>Cancel</button>
<p>Users and passwords: <code>user</code>/<code>user</code>, and <code>admin</code>/<code>admin</code>.</p></form>`);

provider.use(async (context, next) => {
  // Each sign-in asks, so that one can be the other user afterwards.
  if (context.path === '/auth') context.query = { ...context.query, prompt: 'login' };
  if (!context.path.startsWith('/interaction/')) return next();
  context.type = 'html';
  try {
    await provider.interactionDetails(context.req, context.res);
  } catch {
    context.status = 400;
    context.body = page('The sign-in has ended', '<p role="alert">It is over, or from another browser. Start it again in agentctl.</p>');
    return;
  }
  const given = new URLSearchParams(context.method === 'POST' ? await text(context.req) : '');
  const [name, password] = [given.get('name'), given.get('password')];
  const known = Object.hasOwn(USERS, name) && USERS[name].password === password;
  if (known || given.has('cancel')) {
    context.respond = false;
    const result = known ? { login: { accountId: name } } : { error: 'access_denied', error_description: 'The sign-in was cancelled' };
    await provider.interactionFinished(context.req, context.res, result, { mergeWithLastSubmission: false });
    return;
  }
  if (given.has('name')) context.status = 401;
  context.body = form(given.has('name') ? 'Wrong name or password.' : '');
});

createServer(provider.callback()).listen(Number(port), listen, () => console.log(`${WARNING}\nhttp://127.0.0.1:${port}`));
