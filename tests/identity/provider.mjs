// An identity provider: the certified library oidc-provider with its own page for the sign-in.
// Arguments: the folder of its packages, and the settings that `tests/identity/provider.py` lists.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, settings] = process.argv.slice(2);
const require = createRequire(join(folder, 'package.json'));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));
const { audience, scopes, users, clients, seconds, port, ...given } = JSON.parse(settings);

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'first', use: 'sig', alg: 'RS256' };

const server = createServer((request, response) => answer(request, response));
await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
const issuer = given.issuer || `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  cookies: { keys: ['only for tests'] },
  clients,
  scopes: ['openid', 'offline_access', ...scopes],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: true },
    deviceFlow: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'https://api.example.org',
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        audience,
        scope: scopes.join(' '),
        accessTokenFormat: 'jwt',
        accessTokenTTL: seconds,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
    revocation: { enabled: true },
    rpInitiatedLogout: { enabled: true },
  },
  pkce: { required: (_, client) => client.tokenEndpointAuthMethod === 'none' },
  clientBasedCORS: () => true,
  // A refresh token is used once: a second use revokes the whole sign-in.
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...users[id] }) }),
  extraTokenClaims: (_, token) => users[token.accountId ?? token.clientId],
});
// For a proxy that ends TLS.
provider.proxy = true;
// Its pages ask no other host for a font.
provider.use(async (context, next) => {
  await next();
  if (context.response.is('html')) {
    context.body = context.body.replace(/@import url\([^)]*\);/, '');
  }
});
const answer = provider.callback();
console.log(issuer);
